"""Whether a process of this machine does anything: one that is stopped looks from outside like one that only waits."""

import ctypes
import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path

PULSE_SECONDS = 0.2

STOPPED_LOOKS = 2
"""Looks in a row at which a process that is to be killed was stopped: nothing else looks like it, as a busy or frozen
machine may look like a process that does nothing."""

_THREAD = "activity"
_PR_SET_NAME = 15
_SWITCHES = re.compile(r"ctxt_switches:\s+(\d+)")
_STOPPED = re.compile(r"^State:\s+T", re.MULTILINE)
_ENDED = re.compile(r"^State:\s+[ZX]", re.MULTILINE)
_BUSY = re.compile(r"^State:\s+[RD]|^TracerPid:\s+[1-9]", re.MULTILINE)


def runs_of_threads(pid: int) -> dict[str, int]:
    """Return how often each thread of a process has run, by its number.

    Empty if the process has ended, and if one of them is to run now, waits for a disk, or is held by a debugger: then
    the process is not to blame. Also empty where the kernel does not count, as gVisor's.
    """
    try:
        threads = {task.name: (task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()}
    except OSError:
        return {}
    if any(_BUSY.search(status) or not _SWITCHES.search(status) for status in threads.values()):
        return {}
    return {number: _runs(status) for number, status in threads.items()}


def _runs(status: str) -> int:
    return sum(map(int, _SWITCHES.findall(status)))


def is_stopped(pid: int) -> bool:
    """Return whether a process has been stopped by a signal; a debugger does it otherwise."""
    try:
        return _STOPPED.search(Path(f"/proc/{pid}/status").read_text()) is not None
    except OSError:
        return False


@dataclass(slots=True)
class _Seen:
    runs: dict[str, int]
    """Of all threads at the last look that was at all; empty if the process was not to blame."""

    looks: int = 0
    """Looks in a row since which no thread has run."""

    busiest: str = ""
    """Thread that had run most between two looks at all."""

    busiest_runs: int = 0


class Stops:
    """Looks at processes that a signal may have stopped."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def look(self, pid: int) -> int:
        """Return at how many looks in a row a process was stopped, and had not run since the one before.

        A tool that limits how much it computes stops it for moments, and may have done so at several looks.
        """
        runs, seen = runs_of_threads(pid) if is_stopped(pid) else {}, self._seen.setdefault(pid, _Seen({}))
        seen.looks = seen.looks + 1 if runs == seen.runs else 1
        seen.runs = runs
        return seen.looks if runs else 0


def has_ended(pid: int) -> bool:
    """Return whether a process has ended; it may still wait for the one that started it."""
    try:
        return _ENDED.search(Path(f"/proc/{pid}/status").read_text()) is not None
    except OSError:
        return True


class Stillness:
    """Looks at processes in which a thread runs several times a second unless they are stopped.

    Ray's workers have such threads, others begin one by `show_activity`. As long as the thread that ran most runs on,
    the others are not looked at: there may be hundreds.
    """

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def look(self, pid: int) -> int:
        """Return at how many looks in a row a process had done nothing since the one before.

        One alone may have met a machine that was frozen.
        """
        seen = self._seen.setdefault(pid, _Seen({}))
        if self._busiest_has_run(pid, seen):
            seen.runs, seen.looks = {}, 0
            return 0
        runs = runs_of_threads(pid)
        seen.looks = seen.looks + 1 if runs and runs == seen.runs else 0
        if more := {number: runs[number] - before for number, before in seen.runs.items() if number in runs}:
            seen.busiest = max(more, key=lambda number: more[number])
            seen.busiest_runs = runs[seen.busiest]
        seen.runs = runs
        return seen.looks

    @staticmethod
    def _busiest_has_run(pid: int, seen: _Seen) -> bool:
        if not seen.busiest:
            return False
        try:
            runs = _runs(Path(f"/proc/{pid}/task/{seen.busiest}/status").read_text())
        except OSError:
            return False
        before, seen.busiest_runs = seen.busiest_runs, runs
        return runs > before


def show_activity() -> None:
    """Start a thread that runs several times a second, whatever the others wait for, and is known by its name."""
    named = threading.Event()
    threading.Thread(target=_run_now_and_then, args=(named,), daemon=True, name=_THREAD).start()
    named.wait()


def shows_activity(pid: int) -> bool:
    """Return whether a process has a thread that `show_activity` started; raises OSError for one that has ended."""
    return any((task / "comm").read_text().strip() == _THREAD for task in Path(f"/proc/{pid}/task").iterdir())


def _run_now_and_then(named: threading.Event) -> None:
    # Python names threads for itself alone.
    ctypes.CDLL(None).prctl(_PR_SET_NAME, _THREAD.encode(), 0, 0, 0)
    named.set()
    while True:
        time.sleep(PULSE_SECONDS)
