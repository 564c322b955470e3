"""One statement on a database; what it changes comes back as the blocks that differ from the database as it was."""

import json
import re
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from turnmill.tools.sandboxed.answers import pack_answer
from turnmill.tools.sandboxed.parts import unpack
from turnmill.tools.sandboxed.sql_table import render

BLOCKS = "block/"
LENGTH = "length"
BLOCK_BYTES = 4096
_MAX_CHARACTERS = 9000
_MAX_ROWS = 50
_STEPS_PER_LOOK = 10_000


def run(argument: bytes) -> bytes:
    """Run the part `statement` on the parts `database` and `state`."""
    parts = unpack(argument)
    limits = json.loads(parts["limits"])
    before = unpack(parts["state"])
    file = Path("database.sqlite")
    file.write_bytes(patched(parts["database"], before))
    text = _execute(file, parts["statement"].decode(), limits["seconds"])
    after = differences(parts["database"], file.read_bytes())
    num_bytes = sum(map(len, after.values()))
    if num_bytes > limits["bytes"]:
        notice = f"[The change was undone: it touches {num_bytes:,} bytes, and {limits['bytes']:,} are kept.]"
        return pack_answer({"text": f"{text}\n{notice}"}, before, before)
    return pack_answer({"text": text}, before, after)


def patched(database: bytes, changes: Mapping[str, bytes]) -> bytes:
    """The database with the blocks that were changed."""
    if LENGTH not in changes:
        return database
    changed = bytearray(database.ljust(length := int(changes[LENGTH]), b"\0")[:length])
    for name, block in changes.items():
        if name.startswith(BLOCKS):
            start = int(name.removeprefix(BLOCKS)) * BLOCK_BYTES
            changed[start : start + len(block)] = block
    return bytes(changed)


def differences(database: bytes, changed: bytes) -> dict[str, bytes]:
    """The blocks of one that the other has not, and its length; nothing if they are alike."""
    if database == changed:
        return {}
    starts = range(0, len(changed), BLOCK_BYTES)
    blocks = {start // BLOCK_BYTES: changed[start : start + BLOCK_BYTES] for start in starts}
    differing = {
        f"{BLOCKS}{number}": block
        for number, block in blocks.items()
        if database[number * BLOCK_BYTES : number * BLOCK_BYTES + len(block)] != block
    }
    return {LENGTH: str(len(changed)).encode(), **differing}


def _execute(file: Path, statement: str, seconds: float) -> str:
    deadline = time.monotonic() + seconds
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.text_factory = lambda text: text.decode(errors="ignore")
        connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_PER_LOOK)
        try:
            rows = connection.execute(_tidied(statement)).fetchmany(_MAX_CHARACTERS + 1)
            connection.set_progress_handler(None, 0)
            connection.commit()
        except sqlite3.Error as error:
            if str(error) == "interrupted":
                return f"SQL Timeout:\n{statement}"
            return f"Error executing SQL: {error}"
        except (sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
            return f"Error executing SQL: {error}"
    text = render(rows)
    if len(text) > _MAX_CHARACTERS:
        return f"Truncated to {_MAX_ROWS} lines since returned response too long: {render(rows[:_MAX_ROWS])}"
    return text


def _tidied(statement: str) -> str:
    """Agents put a space into operators, and ask a function of another dialect for the year."""
    for wrong, right in (("> =", ">="), ("< =", "<="), ("! =", "!=")):
        statement = statement.replace(wrong, right)
    return re.sub(r"YEAR\s*\(\s*CURDATE\s*\(\s*\)\s*\)", "2020", statement, flags=re.IGNORECASE)
