"""Reads the log of trajectories into the index, from where it has read up to."""

import fcntl
import os
import sqlite3
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from turnmill.trajectory_page.index import Index, put
from turnmill.trajectory_page.summary import TRAINING, VALIDATION, Summary, TurnLine, read_line

CHUNK_BYTES = 8 * 2**20
MARK_BYTES = 64
KINDS = {"step": TRAINING, "validation": VALIDATION}


@dataclass(frozen=True, slots=True)
class Known:
    """How far a file has been read, and the bytes before that place."""

    consumed: int
    mark: bytes


@dataclass(frozen=True, slots=True)
class Reading:
    """How much of what is there has been read."""

    read_bytes: int
    total_bytes: int

    @property
    def done(self) -> bool:
        """Whether that is all."""
        return self.read_bytes >= self.total_bytes


class LogReader:
    """One process at a time writes an index; others read what it writes."""

    def __init__(self, folder: Path, index: Index, *, run: str, environment: str, lock: Path | None = None) -> None:
        self._folder = folder
        self._index = index
        self._run = run
        self._environment = environment
        self._lock_path = lock
        self._lock: int | None = None
        self._open: dict[tuple[str, int, str], Summary] = {}
        self._next_id = 1

    def update(self) -> Generator[Reading, None, None]:
        """Take in what has been written since, part by part; nothing where another process does so."""
        if not self._holds_the_index():
            return
        known = {
            name: Known(consumed, mark)
            for name, consumed, mark in self._index.rows("SELECT name, consumed, mark FROM files")
        }
        files = self._files()
        if self._went_back(files, known):
            # The run has gone on from a checkpoint: what came after it is gone.
            self._index.clear()
            known = {}
            self._take_over()
        total = sum(size for _, size in files)
        read = sum(each.consumed for each in known.values())
        yield Reading(read, total)
        for name, size in files:
            at = known.get(name, Known(0, b""))
            while at.consumed < size:
                after = self._read_on(name, at)
                if after == at:
                    break
                read, at = read + after.consumed - at.consumed, after
                yield Reading(read, total)

    def close(self) -> None:
        """Let another process write."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _holds_the_index(self) -> bool:
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
        self._take_over()
        return True

    def _take_over(self) -> None:
        self._open = {}
        for summary in self._index.summaries("WHERE open = 1 AND kind IN (?, ?)", (TRAINING, VALIDATION)):
            self._open[self._place_of(summary.kind, summary.first_step, summary.name)] = summary
        (((last,),)) = self._index.rows("SELECT coalesce(max(id), 0) FROM episodes")
        self._next_id = int(last) + 1

    def _files(self) -> list[tuple[str, int]]:
        """The log's files with their sizes: training by step, then validation by step."""
        found = []
        if not self._folder.is_dir():
            return []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                kind, _, step = entry.name.removesuffix(".jsonl").rpartition("-")
                if kind in KINDS and step.isdigit() and entry.name.endswith(".jsonl"):
                    found.append((kind, int(step), entry.name, entry.stat().st_size))
        return [(name, size) for _, _, name, size in sorted(found)]

    def _went_back(self, files: list[tuple[str, int]], known: dict[str, Known]) -> bool:
        sizes = dict(files)
        return any(
            sizes.get(name, 0) < at.consumed or self._bytes_before(name, at.consumed) != at.mark
            for name, at in known.items()
        )

    def _bytes_before(self, name: str, place: int) -> bytes:
        start = max(0, place - MARK_BYTES)
        with (self._folder / name).open("rb") as file:
            file.seek(start)
            return file.read(place - start)

    def _read_on(self, name: str, at: Known) -> Known:
        """Take in the next part of a file, in one change of the index."""
        with (self._folder / name).open("rb") as file:
            file.seek(at.consumed)
            lines = file.read(CHUNK_BYTES).splitlines(keepends=True)
            if lines and not lines[-1].endswith(b"\n"):
                lines[-1] += file.readline()
        # A line without its end may be half of one that is being written.
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
        if not lines:
            return at
        consumed = at.consumed + sum(map(len, lines))
        after = Known(consumed, (at.mark + b"".join(lines[-2:]))[-MARK_BYTES:])
        try:
            with self._index.change() as connection:
                self._take_in(connection, name, at.consumed, lines)
                connection.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?)", (name, after.consumed, after.mark))
        except BaseException:
            # What was counted on goes with the change.
            self._take_over()
            raise
        return after

    def _take_in(self, connection: sqlite3.Connection, name: str, start: int, lines: list[bytes]) -> None:
        kind = KINDS[name.partition("-")[0]]
        touched: dict[int, Summary] = {}
        places = []
        for line in lines:
            turn = read_line(line)
            if turn is not None:
                place = self._place_of(kind, turn.step, turn.episode)
                summary = self._open.get(place) or self._begin(connection, kind, turn, touched)
                places.append((summary.id, turn.turn, name, start, len(line)))
                summary.add(turn)
                touched[summary.id] = summary
                if summary.open:
                    self._open[place] = summary
                else:
                    self._open.pop(place, None)
            start += len(line)
        put(connection, touched.values())
        connection.executemany("INSERT OR REPLACE INTO turns VALUES (?, ?, ?, ?, ?)", places)

    def _begin(self, connection: sqlite3.Connection, kind: str, turn: TurnLine, touched: dict[int, Summary]) -> Summary:
        key = self._free_key(connection, turn.episode if kind == TRAINING else f"{turn.episode}@{turn.step}")
        summary = Summary.of_first(
            turn, id=self._next_id, key=key, run=self._run, kind=kind, environment=self._environment
        )
        put(connection, [summary])
        self._next_id += 1
        return summary

    def _free_key(self, connection: sqlite3.Connection, name: str) -> str:
        """The name, or the name and a number where an episode that failed was played again."""
        key, number = name, 1
        while connection.execute("SELECT 1 FROM episodes WHERE key = ?", (key,)).fetchone():
            number += 1
            key = f"{name}~{number}"
        return key

    @staticmethod
    def _place_of(kind: str, step: int, name: str) -> tuple[str, int, str]:
        """Every validation starts its episodes afresh and may give them the names of the one before."""
        return (kind, step if kind == VALIDATION else -1, name)
