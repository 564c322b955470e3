"""What a list asks for, in one SQLite file beside the run, or in memory: made once, and carried on as the run goes on.

Everything in it can be made again from the run folder.
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
class Place:
    """Where a turn stands."""

    file: str
    start: int
    length: int


class Index:
    """Summaries of trajectories, and where their turns stand. Threads share it; one of them writes."""

    def __init__(self, path: Path | None = None) -> None:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        self._name = str(path) if path else f"file:index-{id(self)}?mode=memory&cache=shared"
        self._in_memory = path is None
        self._local = threading.local()
        # What is in memory lives as long as one connection to it.
        self._writer = self._connect()
        self._lock = threading.Lock()
        if self._version() != FORMAT:
            self._begin_anew()

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

    def _begin_anew(self) -> None:
        """Drop what another version left, in one transaction with what stands in its place."""
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
        """Let go of the file."""
        self._writer.close()

    # ---- writing ----

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """A change that is there as a whole or not at all."""
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
        """Forget everything."""
        with self.change() as connection:
            for table in ("files", "episodes", "turns"):
                connection.execute(f"DELETE FROM {table}")

    def replace_in_flight(self, summaries: Iterable[Summary]) -> None:
        """What is in flight is these, and nothing else."""
        with self.change() as connection:
            connection.execute("DELETE FROM episodes WHERE kind = ?", (IN_FLIGHT,))
            put(connection, summaries)

    # ---- reading ----

    @property
    def revision(self) -> int:
        """A number that grows with every change."""
        return int(self._reader.execute("SELECT revision FROM state").fetchone()[0])

    def rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """What a query finds."""
        return self._reader.execute(query, values).fetchall()

    def summaries(self, where: str = "", values: Sequence[Any] = ()) -> list[Summary]:
        """The trajectories that fit what stands after FROM."""
        found = self.rows(f"SELECT {', '.join(COLUMNS)} FROM episodes {where}", values)
        return [Summary(*row) for row in found]

    def find(self, key: str) -> Summary | None:
        """The trajectory of that key."""
        found = self.summaries("WHERE key = ?", (key,))
        return found[0] if found else None

    def places(self, episode: int) -> list[Place]:
        """Where the turns of a trajectory stand, in their order."""
        found = self.rows("SELECT file, start, length FROM turns WHERE episode = ? ORDER BY position", (episode,))
        return [Place(*row) for row in found]


def open_index(path: Path) -> Index:
    """The index in a file; one that cannot be read is made anew."""
    try:
        return Index(path)
    except sqlite3.OperationalError as error:
        # The disk is full, another process holds it, or it may not be written: nothing is wrong with what it holds.
        raise SettingsError(
            f"The index {path} cannot be used: {error}. Free some space, or set XDG_CACHE_HOME."
        ) from error
    except sqlite3.DatabaseError:
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        return Index(path)


def put(connection: sqlite3.Connection, summaries: Iterable[Summary]) -> None:
    """Write rows, in place of those with the same id."""
    marks = ", ".join("?" * len(COLUMNS))
    connection.executemany(f"INSERT OR REPLACE INTO episodes VALUES ({marks})", map(as_row, summaries))
