"""Advantages of each step in Parquet files: those of whole trajectories, and those of response tokens."""

import contextlib
import json
import math
import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from turnmill.observability import atomic_files, json_lines

TRAJECTORIES = "advantages"
TOKENS = "token-advantages"
OF_TOKENS = "advantages"
"""Column of a turn's advantages, one per response token."""

ROWS_PER_GROUP = 1024
"""Turns that are encoded, and read, at once."""

TokenAdvantages = tuple[str, int, npt.ArrayLike]
"""Episode id, turn, and the advantage of each response token."""


class AdvantageLog:
    """The advantages in the folder `trajectories/` of a run; the driver alone writes them, each file once.

    Version 0.1 and runs begun before 0.2 have one file of JSON lines per step instead, which is read as well.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, step: int, advantages: Mapping[str, float]) -> None:
        """Write the advantage of every trajectory of a step, by episode id."""
        import pyarrow as pa
        from pyarrow import parquet

        schema = pa.schema({"episode": pa.string(), "advantage": pa.float64()})
        table = pa.table([list(advantages.keys()), list(advantages.values())], schema=schema)
        with atomic_files.replacing(self._file(TRAJECTORIES, step), patience=atomic_files.PATIENCE) as file:
            parquet.write_table(table, file, compression="zstd")

    def write_tokens(self, step: int, turns: Iterable[TokenAdvantages]) -> None:
        """Write the advantages of response tokens in half precision (three digits, at most 65,504); nothing if none.

        Memory is that of `ROWS_PER_GROUP` turns, however many there are.
        """
        from pyarrow import parquet

        remaining = iter(turns)
        groups = iter(lambda: list(islice(remaining, ROWS_PER_GROUP)), [])
        tables = map(_table_of_turns, groups)
        first = next(tables, None)
        if first is None:
            return
        with (
            atomic_files.replacing(self._file(TOKENS, step), patience=atomic_files.PATIENCE) as file,
            parquet.ParquetWriter(
                file, first.schema, compression="zstd", use_dictionary=["episode"], write_statistics=["episode"]
            ) as writer,
        ):
            writer.write_table(first)
            for table in tables:
                writer.write_table(table)

    def read(self, step: int) -> dict[str, float]:
        """Return the advantages of a step's trajectories by episode id; empty if there are none."""
        from pyarrow import parquet

        try:
            columns = parquet.read_table(self._file(TRAJECTORIES, step)).to_pydict()
        except FileNotFoundError:
            records = json_lines.read(self._lines(step), "episode")
            found = ((str(each["episode"]), each["advantage"]) for each in records if "advantage" in each)
            return {episode: math.nan if value is None else value for episode, value in found}
        return dict(zip(columns["episode"], columns["advantage"], strict=True))

    def read_tokens(self, step: int, episode: str | None = None) -> Iterator[tuple[str, int, list[float | None]]]:
        """Yield episode id, turn and token advantages of a step's turns, or of those of one episode.

        None stands for what is not a finite number.
        """
        from pyarrow import parquet

        try:
            file = parquet.ParquetFile(self._file(TOKENS, step))
        except FileNotFoundError:
            lines = self._lines(step)
            records = json_lines.read(lines, "episode") if episode is None else _lines_of(lines, episode)
            yield from ((r["episode"], int(r["turn"]), r[OF_TOKENS]) for r in records if OF_TOKENS in r)
            return
        with file:
            for number in range(file.num_row_groups):
                names = file.read_row_group(number, columns=["episode"])["episode"].to_pylist()
                rows = [row for row, name in enumerate(names) if episode in (None, name)]
                if rows:
                    columns = file.read_row_group(number, columns=["turn", OF_TOKENS]).take(rows).to_pydict()
                    values = (list(map(_finite, of_turn)) for of_turn in columns[OF_TOKENS])
                    yield from zip((names[row] for row in rows), columns["turn"], values, strict=True)

    def read_episode(self, step: int, episode: str) -> tuple[dict[int, Sequence[float | None]], float | None]:
        """Return the advantages of an episode's tokens by turn, and the one that all of its tokens share, if any."""
        from pyarrow import parquet

        by_turn: dict[int, Sequence[float | None]] = {
            turn: values for _, turn, values in self.read_tokens(step, episode)
        }
        try:
            table = parquet.read_table(self._file(TRAJECTORIES, step), filters=[("episode", "==", episode)])
            found = table["advantage"].to_pylist()
        except FileNotFoundError:
            found = [each.get("advantage") for each in _lines_of(self._lines(step), episode)]
        shared = [value for value in map(_finite, found) if value is not None]
        return by_turn, shared[-1] if shared else None

    def rewind(self, step: int) -> None:
        """Delete the files of later steps."""
        self._delete(lambda of_file: of_file > step)

    def drop_before(self, step: int) -> None:
        """Delete the files of earlier steps."""
        self._delete(lambda of_file: of_file < step)

    def _delete(self, is_unwanted: Callable[[int], bool]) -> None:
        for kind in (TRAJECTORIES, TOKENS):
            for file in self.path.glob(f"{kind}-*.*"):
                if is_unwanted(int(file.stem.rpartition("-")[2])):
                    file.unlink(missing_ok=True)

    def _file(self, kind: str, step: int) -> Path:
        return self.path / f"{kind}-{step:06d}.parquet"

    def _lines(self, step: int) -> Path:
        return self.path / f"{TRAJECTORIES}-{step:06d}.jsonl"


def _table_of_turns(turns: Sequence[TokenAdvantages]) -> Any:
    """Return a pyarrow table of turns."""
    import pyarrow as pa

    limit = np.finfo(np.float16).max
    values = [np.asarray(of_turn, dtype=np.float32) for _, _, of_turn in turns]
    halves = np.clip(np.concatenate(values), -limit, limit).astype(np.float16)
    ends = np.cumsum([0, *map(len, values)], dtype=np.int32)
    return pa.table(
        {
            "episode": pa.array([episode for episode, _, _ in turns], pa.string()),
            "turn": pa.array([turn for _, turn, _ in turns], pa.int32()),
            OF_TOKENS: pa.ListArray.from_arrays(ends, pa.array(halves)),
        }
    )


def _lines_of(path: Path, episode: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON lines of one episode, without parsing those of others."""
    needle = b'{"episode":' + json.dumps(episode, ensure_ascii=False).encode("utf-8", errors="replace") + b","
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            start = content.find(needle)
            while start >= 0:
                content.seek(start)
                # Torn lines are skipped.
                with contextlib.suppress(ValueError):
                    yield json.loads(content.readline())
                start = content.find(needle, start + len(needle))
    except (FileNotFoundError, ValueError):
        # There is no such file, or it is empty.
        return


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
