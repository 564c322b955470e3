"""SQLite index of trajectories, in a file or in memory, updated during the run.

Everything in it can be rebuilt from the run folder.
"""

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turnmill.core.errors import SettingsError
from turnmill.trajectory_page.summary import COLUMNS, IN_FLIGHT, Summary, as_row

SqlValue = str | bytes | int | float | None

FORMAT = 2
BUSY_SECONDS = 10.0

_SCHEMA = f"""
CREATE TABLE files (name TEXT PRIMARY KEY, consumed INTEGER NOT NULL, mark BLOB NOT NULL);
CREATE TABLE state (revision INTEGER NOT NULL);
INSERT INTO state VALUES (0);
CREATE TABLE episodes ({", ".join(f"{name} INTEGER PRIMARY KEY" if name == "id" else name for name in COLUMNS)});
CREATE UNIQUE INDEX by_key ON episodes (key);
CREATE INDEX by_task ON episodes (task);
CREATE INDEX by_step ON episodes (last_step, id);
CREATE INDEX by_outcome ON episodes (outcome, reward);
CREATE INDEX by_open ON episodes (open) WHERE open = 1;
CREATE TABLE turns (
    episode INTEGER, position INTEGER, file TEXT, start INTEGER, length INTEGER, PRIMARY KEY (episode, position)
) WITHOUT ROWID;
PRAGMA user_version = {FORMAT};
"""


@dataclass(frozen=True, slots=True)
class LinePosition:
    """Position of a turn's line in the log."""

    file: str
    start: int
    length: int


class Index:
    """Summaries of trajectories and the positions of their turns. It is shared by threads, one of which writes."""

    def __init__(self, path: Path | None = None) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._name = str(path) if path else f"file:index-{id(self)}?mode=memory&cache=shared"
        self._in_memory = path is None
        self._local = threading.local()
        # A database in memory lives as long as a connection to it.
        self._writer = self._connect()
        self._lock = threading.Lock()
        if self._version() != FORMAT:
            self._recreate_tables()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._name, uri=self._in_memory, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        if self._in_memory:
            connection.execute("PRAGMA read_uncommitted = 1")
        else:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    def _version(self) -> int:
        return int(self._writer.execute("PRAGMA user_version").fetchone()[0])

    def _recreate_tables(self) -> None:
        """Replace the tables of another version, in one transaction."""
        tables = self._writer.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        drops = "".join(f'DROP TABLE "{name}";' for (name,) in tables)
        self._writer.executescript(f"BEGIN IMMEDIATE; {drops} {_SCHEMA} COMMIT;")

    @property
    def _reader(self) -> sqlite3.Connection:
        if not hasattr(self._local, "connection"):
            self._local.connection = self._connect()
        connection: sqlite3.Connection = self._local.connection
        return connection

    def close(self) -> None:
        """Close the file."""
        self._writer.close()

    # ---- writing ----

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block as one transaction and increment the revision."""
        with self._lock:
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("UPDATE state SET revision = revision + 1")
            except BaseException:
                self._writer.execute("ROLLBACK")
                raise
            self._writer.execute("COMMIT")

    def clear(self) -> None:
        """Delete all rows."""
        with self.transaction() as connection:
            for table in ("files", "episodes", "turns"):
                connection.execute(f"DELETE FROM {table}")

    def replace_in_flight(self, summaries: Iterable[Summary]) -> None:
        """Replace the trajectories in flight."""
        with self.transaction() as connection:
            connection.execute("DELETE FROM episodes WHERE kind = ?", (IN_FLIGHT,))
            insert_summaries(connection, summaries)

    # ---- reading ----

    @property
    def revision(self) -> int:
        """Number that increases with every transaction."""
        return int(self._reader.execute("SELECT revision FROM state").fetchone()[0])

    def rows(self, query: str, values: Sequence[SqlValue] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return self._reader.execute(query, values).fetchall()

    def summaries(self, where: str = "", values: Sequence[SqlValue] = ()) -> list[Summary]:
        """Return the trajectories selected by the clauses after FROM."""
        found = self.rows(f"SELECT {', '.join(COLUMNS)} FROM episodes {where}", values)
        return [Summary(*row) for row in found]

    def find(self, key: str) -> Summary | None:
        """Return the trajectory with a key; None if there is none."""
        found = self.summaries("WHERE key = ?", (key,))
        return found[0] if found else None

    def turn_positions(self, episode: int) -> list[LinePosition]:
        """Return the positions of a trajectory's turns, in order."""
        found = self.rows("SELECT file, start, length FROM turns WHERE episode = ? ORDER BY position", (episode,))
        return [LinePosition(*row) for row in found]


def open_index(path: Path) -> Index:
    """Open the index in a file; a corrupt one is rebuilt. Raises SettingsError if the file cannot be used."""
    try:
        return Index(path)
    except sqlite3.OperationalError as error:
        # The disk is full, the file is locked, or it may not be written: its content is fine.
        raise SettingsError(
            f"The index {path} cannot be used: {error}. Free some space, or set XDG_CACHE_HOME."
        ) from error
    except sqlite3.DatabaseError:
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return Index(path)


def insert_summaries(connection: sqlite3.Connection, summaries: Iterable[Summary]) -> None:
    """Insert rows, replacing those with the same id."""
    placeholders = ", ".join("?" * len(COLUMNS))
    connection.executemany(f"INSERT OR REPLACE INTO episodes VALUES ({placeholders})", map(as_row, summaries))
