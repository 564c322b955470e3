"""Incremental indexing of a run's trajectory log."""

import fcntl
import os
import sqlite3
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from turnmill.observability import trajectory_files
from turnmill.observability.trajectory_files import LogFile
from turnmill.trajectory_page.index import Index, insert_summaries
from turnmill.trajectory_page.summary import TRAINING, VALIDATION, Summary, TurnLine, read_line

CHUNK_BYTES = 8 * 2**20
TAIL_BYTES = 64
KINDS = {trajectory_files.TRAINING: TRAINING, trajectory_files.VALIDATION: VALIDATION}


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """Position up to which a file has been read, and the bytes before it, by which a rewound file is detected."""

    consumed: int
    tail: bytes


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """Progress of reading the log."""

    read_bytes: int
    total_bytes: int

    @property
    def done(self) -> bool:
        """True if everything has been read."""
        return self.read_bytes >= self.total_bytes


class LogReader:
    """Reads new lines of the log into the index. One process at a time writes an index; others only read it."""

    def __init__(self, folder: Path, index: Index, *, run: str, environment: str, lock: Path | None = None) -> None:
        self._folder = folder
        self._index = index
        self._run = run
        self._environment = environment
        self._lock_path = lock
        self._lock: int | None = None
        self._open: dict[tuple[str, int, str], Summary] = {}
        self._next_id = 1

    def update(self) -> Generator[ReadProgress, None, None]:
        """Index new lines, chunk by chunk; does nothing if another process writes the index."""
        if not self._acquire_lock():
            return
        positions = {
            name: ReadPosition(consumed, tail)
            for name, consumed, tail in self._index.rows("SELECT name, consumed, mark FROM files")
        }
        files = self._files()
        if self._was_rewound(files, positions):
            # The run was resumed from a checkpoint, and what came after it was deleted.
            self._index.clear()
            positions = {}
            self._load_open_episodes()
        total = sum(size for _, size in files)
        read = sum(each.consumed for each in positions.values())
        yield ReadProgress(read, total)
        for name, size in files:
            at = positions.get(name, ReadPosition(0, b""))
            while at.consumed < size:
                after = self._read_chunk(name, at)
                if after == at:
                    break
                read, at = read + after.consumed - at.consumed, after
                yield ReadProgress(read, total)

    def close(self) -> None:
        """Release the index for other processes."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _acquire_lock(self) -> bool:
        if self._lock is not None:
            return True
        if self._lock_path is not None:
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                return False
            self._lock = lock
        self._load_open_episodes()
        return True

    def _load_open_episodes(self) -> None:
        self._open = {}
        for summary in self._index.summaries("WHERE open = 1 AND kind IN (?, ?)", (TRAINING, VALIDATION)):
            self._open[self._episode_key(summary.kind, summary.first_step, summary.name)] = summary
        (((last,),)) = self._index.rows("SELECT coalesce(max(id), 0) FROM episodes")
        self._next_id = int(last) + 1

    def _files(self) -> list[tuple[str, int]]:
        """Return the log's files and their sizes: training, then validation, by step and name."""
        found = []
        if not self._folder.is_dir():
            return []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                log_file = LogFile.named(entry.name)
                if log_file is not None:
                    found.append((log_file, entry.stat().st_size))
        return [(log_file.name, size) for log_file, size in sorted(found)]

    def _was_rewound(self, files: list[tuple[str, int]], positions: dict[str, ReadPosition]) -> bool:
        sizes = dict(files)
        return any(
            sizes.get(name, 0) < at.consumed or self._read_tail(name, at.consumed) != at.tail
            for name, at in positions.items()
        )

    def _read_tail(self, name: str, end: int) -> bytes:
        start = max(0, end - TAIL_BYTES)
        with (self._folder / name).open("rb") as file:
            file.seek(start)
            return file.read(end - start)

    def _read_chunk(self, name: str, at: ReadPosition) -> ReadPosition:
        """Index the next chunk of a file in one transaction."""
        with (self._folder / name).open("rb") as file:
            file.seek(at.consumed)
            lines = file.read(CHUNK_BYTES).splitlines(keepends=True)
            if lines and not lines[-1].endswith(b"\n"):
                lines[-1] += file.readline()
        # A line without its end may still be being written.
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
        if not lines:
            return at
        consumed = at.consumed + sum(map(len, lines))
        after = ReadPosition(consumed, (at.tail + b"".join(lines[-2:]))[-TAIL_BYTES:])
        try:
            with self._index.transaction() as connection:
                self._index_lines(connection, name, at.consumed, lines)
                connection.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", (name, after.consumed, after.tail))
        except BaseException:
            # The summaries in memory have changed, too: load them again.
            self._load_open_episodes()
            raise
        return after

    def _index_lines(self, connection: sqlite3.Connection, name: str, start: int, lines: list[bytes]) -> None:
        kind = KINDS[name.partition("-")[0]]
        touched: dict[int, Summary] = {}
        turn_positions = []
        for line in lines:
            turn = read_line(line)
            if turn is not None:
                place = self._episode_key(kind, turn.step, turn.episode)
                summary = self._open.get(place) or self._add_episode(connection, kind, turn)
                turn_positions.append((summary.id, turn.turn, name, start, len(line)))
                summary.add(turn)
                touched[summary.id] = summary
                if summary.open:
                    self._open[place] = summary
                else:
                    self._open.pop(place, None)
            start += len(line)
        insert_summaries(connection, touched.values())
        connection.executemany("INSERT OR REPLACE INTO turns VALUES (?, ?, ?, ?, ?)", turn_positions)

    def _add_episode(self, connection: sqlite3.Connection, kind: str, turn: TurnLine) -> Summary:
        key = self._free_key(connection, turn.episode if kind == TRAINING else f"{turn.episode}@{turn.step}")
        summary = Summary.from_first_turn(
            turn, id=self._next_id, key=key, run=self._run, kind=kind, environment=self._environment
        )
        insert_summaries(connection, [summary])
        self._next_id += 1
        return summary

    def _free_key(self, connection: sqlite3.Connection, name: str) -> str:
        """Return the name, with a number appended if an episode of this name is already indexed."""
        key, number = name, 1
        while connection.execute("SELECT 1 FROM episodes WHERE key = ?", (key,)).fetchone():
            number += 1
            key = f"{name}~{number}"
        return key

    @staticmethod
    def _episode_key(kind: str, step: int, name: str) -> tuple[str, int, str]:
        """Return the key of an episode; validations may use the same names."""
        return (kind, step if kind == VALIDATION else -1, name)
