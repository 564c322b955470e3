"""Execution of one statement on a database; the changed blocks of the file are returned."""

import hashlib
import json
import re
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from turnmill.tools.sandboxed.packing import unpack
from turnmill.tools.sandboxed.session_result import pack_session_result
from turnmill.tools.sandboxed.sql_table import render

DATABASE = "database.sqlite"
BLOCKS = "block/"
LENGTH = "length"
BLOCK_BYTES = 4096
_MAX_CHARACTERS = 9000
_MAX_ROWS = 50
_STEPS_PER_LOOK = 10_000
_PRIMARY_CODE = 0xFF


def run(argument: bytes) -> bytes:
    """Run the part `statement` on the file DATABASE, after applying the changes in the part `state`."""
    parts = unpack(argument)
    limits = json.loads(parts["limits"])
    before = unpack(parts["state"])
    file = Path(DATABASE)
    patch(file, before)
    statement = parts["statement"].decode()
    text = _execute(file, "ro", statement, limits["seconds"])
    if text is not None:
        return pack_session_result({"text": text}, before, before)
    digests = block_digests(file)
    text = _execute(file, "rw", statement, limits["seconds"])
    after = changes_since(digests, file, before)
    num_bytes = sum(map(len, after.values()))
    if num_bytes > limits["bytes"]:
        notice = f"[The change was undone: it touches {num_bytes:,} bytes, and {limits['bytes']:,} are kept.]"
        return pack_session_result({"text": f"{text}\n{notice}"}, before, before)
    return pack_session_result({"text": text}, before, after)


def patch(file: Path, changes: Mapping[str, bytes]) -> None:
    """Write changed blocks into a database."""
    if LENGTH not in changes:
        return
    with file.open("r+b") as database:
        database.truncate(int(changes[LENGTH]))
        for name, block in changes.items():
            if name.startswith(BLOCKS):
                database.seek(_number(name) * BLOCK_BYTES)
                database.write(block)


def block_digests(file: Path) -> list[bytes]:
    """Return a digest of each block, by which changed blocks are found."""
    return [hashlib.blake2b(block, digest_size=16).digest() for block in _blocks(file)]


def changes_since(digests: Sequence[bytes], file: Path, before: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return all changes, including earlier ones; those of before if nothing has changed since."""
    changed = {
        f"{BLOCKS}{number}": block
        for number, block in enumerate(_blocks(file))
        if number >= len(digests) or hashlib.blake2b(block, digest_size=16).digest() != digests[number]
    }
    length = file.stat().st_size
    num_blocks = -(-length // BLOCK_BYTES)
    if not changed and num_blocks == len(digests):
        return dict(before)
    kept = {name: block for name, block in before.items() if name != LENGTH and _number(name) < num_blocks}
    return {**kept, **changed, LENGTH: str(length).encode()}


def _number(name: str) -> int:
    return int(name.removeprefix(BLOCKS))


def _blocks(file: Path) -> Iterator[bytes]:
    with file.open("rb") as database:
        while block := database.read(BLOCK_BYTES):
            yield block


def _execute(file: Path, mode: str, statement: str, seconds: float) -> str | None:
    """Return the text of a statement's result; None if it writes and the mode is `ro`."""
    deadline = time.monotonic() + seconds
    with closing(sqlite3.connect(f"file:{file}?mode={mode}", uri=True, isolation_level=None)) as connection:
        connection.text_factory = lambda text: text.decode(errors="ignore")
        connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_PER_LOOK)
        try:
            rows = connection.execute(_tidied(statement)).fetchmany(_MAX_CHARACTERS + 1)
            connection.set_progress_handler(None, 0)
            connection.commit()
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE == sqlite3.SQLITE_READONLY and mode == "ro":
                return None
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
    """Correct common errors of agents: spaces in operators, and another dialect's function for the year."""
    for wrong, right in (("> =", ">="), ("< =", "<="), ("! =", "!=")):
        statement = statement.replace(wrong, right)
    return re.sub(r"YEAR\s*\(\s*CURDATE\s*\(\s*\)\s*\)", "2020", statement, flags=re.IGNORECASE)
