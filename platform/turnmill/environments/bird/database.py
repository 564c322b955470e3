"""Read-only SQLite databases, with limits on time and size of queries."""

import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

from turnmill.core.errors import TurnmillError

Rows = Counter[tuple[object, ...]]
"""Rows of a result as a multiset: their order does not matter."""

MAX_ROWS = 100_000
MAX_VALUE_BYTES = 10 * 2**20
_STEPS_PER_TIME_CHECK = 100
"""A single step may produce a value of MAX_VALUE_BYTES, so time is checked often; more checks slow queries down."""

_READING = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})


class QueryError(TurnmillError):
    """A query failed; the message is SQLite's."""


class QueryTimeoutError(QueryError):
    """A query took too long."""


def open_database(path: Path) -> sqlite3.Connection:
    """Open a database file read-only, or create a database in memory from an `.sql` script."""
    if path.suffix == ".sql":
        connection = sqlite3.connect(":memory:")
        connection.executescript(path.read_text(encoding="utf-8"))
    else:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    # Some data sets contain text in other encodings, which must not make queries fail.
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    return connection


def query(connection: sqlite3.Connection, statement: str, *, timeout_seconds: float) -> Rows:
    """Execute a statement that may only read, and return its rows. Raises QueryError."""
    deadline = time.monotonic() + timeout_seconds
    connection.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_PER_TIME_CHECK)
    connection.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY)
    try:
        with closing(connection.cursor()) as cursor:
            rows = cursor.execute(statement).fetchmany(MAX_ROWS + 1)
    except (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError) as error:
        if time.monotonic() > deadline:
            raise QueryTimeoutError(f"it took longer than {timeout_seconds:g} s") from error
        raise QueryError(str(error)) from error
    finally:
        connection.set_progress_handler(None, 0)
        connection.set_authorizer(None)
    if len(rows) > MAX_ROWS:
        raise QueryError(f"the result has more than {MAX_ROWS} rows")
    return Counter(rows)


def schema(connection: sqlite3.Connection) -> str:
    """Return the CREATE TABLE statements of all tables."""
    rows = connection.execute("SELECT sql FROM sqlite_master WHERE type = 'table' AND sql IS NOT NULL ORDER BY rowid")
    return "\n".join(f"{sql};" for (sql,) in rows)
