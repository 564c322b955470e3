"""Databases that are asked and never changed."""

import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

from turnmill.core.errors import TurnmillError

Rows = Counter[tuple[object, ...]]
"""Rows of a result, whatever their order."""

MAX_ROWS = 100_000
MAX_VALUE_BYTES = 10 * 2**20
_STEPS_PER_LOOK = 100
"""A step may make a value of MAX_VALUE_BYTES, so that few take long; with more looks ordinary statements get slower."""

_READING = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})


class QueryError(TurnmillError):
    """A query that has no result: SQLite's words say why."""


class QueryTimeoutError(QueryError):
    """A query that took too long."""


def open_database(path: Path) -> sqlite3.Connection:
    """A database file, opened for reading alone, or a script of SQL that makes one in memory."""
    if path.suffix == ".sql":
        connection = sqlite3.connect(":memory:")
        connection.executescript(path.read_text(encoding="utf-8"))
    else:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    # Some data sets hold text in other encodings, which no query should fail for.
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    return connection


def ask(connection: sqlite3.Connection, statement: str, *, seconds: float) -> Rows:
    """The rows that a statement gives, which may read and nothing else. Raises QueryError."""
    deadline = time.monotonic() + seconds
    connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_PER_LOOK)
    connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY)
    try:
        with closing(connection.cursor()) as cursor:
            rows = cursor.execute(statement).fetchmany(MAX_ROWS + 1)
    except (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError) as error:
        if time.monotonic() > deadline:
            raise QueryTimeoutError(f"it took longer than {seconds:g} s") from error
        raise QueryError(str(error)) from error
    finally:
        connection.set_progress_handler(None, 0)
        connection.set_authorizer(None)
    if len(rows) > MAX_ROWS:
        raise QueryError(f"the result has more than {MAX_ROWS} rows")
    return Counter(rows)


def schema(connection: sqlite3.Connection) -> str:
    """The statements that made the tables."""
    rows = connection.execute("SELECT sql FROM sqlite_master WHERE type = 'table' AND sql IS NOT NULL ORDER BY rowid")
    return "\n".join(f"{sql};" for (sql,) in rows)
