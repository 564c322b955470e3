"""The runs in a folder, such as the claim of a team: read seldom, and not deeper than is shown."""

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from turnmill.observability.run_folder import ATTEMPT_SUFFIX, RunFolder
from turnmill.trajectory_page.run_state import RunState, read_state

LISTING_SECONDS = 5.0
"""Seconds for which the folder is not read again, however many visitors there are."""

PAGE_SIZE = 50


@dataclass(frozen=True, slots=True)
class RunEntry:
    """A run in the folder."""

    name: str

    last_beat: float
    """Time of its last progress, in seconds since 1970."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """A run with its state."""

    name: str
    last_beat: float
    state: RunState


@dataclass(frozen=True, slots=True)
class RunsPage:
    """One page of the list, newest progress first."""

    rows: list[RunRow]
    total: int
    page: int
    pages: int


class RunList:
    """Names and states of the runs in a folder, which may be missing until the first run starts."""

    def __init__(self, path: Path, *, listing_seconds: float = LISTING_SECONDS) -> None:
        self.path = path
        self.problem = ""
        """Why the folder could not be read the last time; empty if it could."""

        self.revision = 0
        """Number that increases when runs come, go or progress."""

        self._listing_seconds = listing_seconds
        self._lock = threading.Lock()
        self._entries: list[RunEntry] = []
        self._states: dict[str, RunState] = {}
        self._read_at = -listing_seconds

    def entries(self) -> Sequence[RunEntry]:
        """Return the runs, newest progress first."""
        with self._lock:
            if time.monotonic() - self._read_at >= self._listing_seconds:
                self._read()
            return self._entries

    def fetch_page(self, name: str, page: int) -> RunsPage:
        """Return a page of the runs whose names contain a text; the last page if the requested one lies beyond it."""
        found = [entry for entry in self.entries() if name in entry.name]
        pages = max(1, -(-len(found) // PAGE_SIZE))
        page = min(max(1, page), pages)
        shown = found[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]
        rows = [RunRow(entry.name, entry.last_beat, self._state(entry.name)) for entry in shown]
        return RunsPage(rows, len(found), page, pages)

    def find(self, name: str) -> Path | None:
        """Return the folder of a run; None if the folder has none of this name."""
        if not _may_be_run(name) or "/" in name:
            return None
        path = self.path / name
        try:
            # Under an operator it is a link to the newest attempt beside it. Links to elsewhere are not followed.
            inside = path.resolve().parent == self.path.resolve()
            return path if inside and RunFolder(path).job.is_file() else None
        except (OSError, RuntimeError):
            return None

    def _state(self, name: str) -> RunState:
        states = self._states
        if name not in states:
            states[name] = read_state(RunFolder(self.path / name))
        return states[name]

    def _read(self) -> None:
        try:
            with os.scandir(self.path) as found:
                names = [entry.name for entry in found if _may_be_run(entry.name)]
            self.problem = ""
        except FileNotFoundError:
            names = []
        except OSError as error:
            # What was read before is shown until the folder can be read again.
            self.problem = f"{self.path} cannot be read: {error.strerror or error}"
            self._read_at = time.monotonic()
            return
        entries = [entry for name in names if (entry := self._entry(name))]
        entries.sort(key=lambda entry: (-entry.last_beat, entry.name))
        self.revision += entries != self._entries
        self._entries, self._states, self._read_at = entries, {}, time.monotonic()

    def _entry(self, name: str) -> RunEntry | None:
        path = self.find(name)
        if path is None:
            return None
        folder = RunFolder(path)
        try:
            return RunEntry(name, folder.last_beat() or folder.job.stat().st_mtime)
        except OSError:
            return None


def _may_be_run(name: str) -> bool:
    """Return whether a folder of this name may be a run, and not an older attempt of one or a file of turnmill's."""
    # What cannot be printed cannot be part of a link.
    return name.isprintable() and not name.startswith(".") and ATTEMPT_SUFFIX.search(name) is None
