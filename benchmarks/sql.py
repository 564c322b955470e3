"""One statement of the tool `sql` on databases of several sizes, sandbox included.

OMP_NUM_THREADS=1 .venv/bin/python benchmarks/sql.py
"""

import argparse
import asyncio
import sqlite3
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

from runs import table

from turnmill.sandboxes.fork import ForkSandbox
from turnmill.testing.tool_calls import Dialogue
from turnmill.tools.base import ToolContext
from turnmill.tools.registry import create
from turnmill.tools.sandboxed import PRELOAD

READS, WRITES = "<sql>select count(*) from t</sql>", "<sql>insert into t(x) values (1)</sql>"
REPEATS = 9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[1, 10, 100])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sql-") as folder:
        rows = asyncio.run(measure(Path(folder), options.megabytes))
    print(table(["database", "a statement that reads, ms", "that writes, ms"], rows))


async def measure(folder: Path, sizes: list[int]) -> list[list[str]]:
    sandbox = ForkSandbox(preload=PRELOAD)
    rows = []
    try:
        await sandbox.start()
        for megabytes in sizes:
            dialogue = Dialogue(
                create("sql", ToolContext(sandbox, {"SQL_DB_FOLDER": str(folder)})),
                {"db_path": str(make(folder, megabytes))},
            )
            times = [f"{await median_ms(dialogue, statement):.0f}" for statement in (READS, WRITES)]
            rows.append([f"{megabytes} MB", *times])
    finally:
        await sandbox.close()
    return rows


async def median_ms(dialogue: Dialogue, statement: str) -> float:
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        observation = await dialogue.say(statement)
        times.append(1000 * (time.perf_counter() - begun))
        assert "Error" not in observation, observation
    # The first has the file's digest made.
    return statistics.median(times[1:])


def make(folder: Path, megabytes: int) -> Path:
    path = folder / f"{megabytes}.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table t(x)")
        connection.executemany("insert into t values (randomblob(?))", [(100_000,)] * (10 * megabytes))
        connection.commit()
    return path


if __name__ == "__main__":
    main()
