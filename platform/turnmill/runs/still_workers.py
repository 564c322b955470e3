"""Agent loop workers of this machine that stand still: they are killed, and the trainer replaces them.

A worker that was stopped, by a signal or with its container, keeps its step waiting until the run is taken for stalled.
"""

import logging
import re
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from turnmill.core.process_mark import PROCESS_MARK
from turnmill.runs.processes import send_signal

LOOK_SECONDS, STILL_LOOKS = 1.0, 3
"""Time between two looks at a worker, and looks in a row at which it has done nothing since the one before: one alone
may have met a machine that was frozen."""

REPLACEABLE = ("ToolLoopWorker", "MultiTurnWorker", "HarnessWorker", "GrlLoopWorker", "EpisodeLoopWorker")
"""Classes of workers whose trajectories others carry on; the death of another one would fail the attempt."""

_TITLE = re.compile(rb"ray::(\w+)")
_SWITCHES = re.compile(r"ctxt_switches:\s+(\d+)")
# Of /proc/PID/stat, counted after the name of the program: proc_pid_stat(5).
_STATE, _USER_TIME = 0, 11

log = logging.getLogger(__name__)


@contextmanager
def still_workers_killed(mark: str) -> Iterator[None]:
    """Kill workers with a mark that stand still, while the context lasts."""
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(mark, over), daemon=True, name="still-workers")
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(mark: str, over: threading.Event) -> None:
    seen: Mapping[int, tuple[str, int]] = {}
    while not over.wait(LOOK_SECONDS):
        looks = {}
        for pid in _workers(mark):
            before, number = seen.get(pid, ("", 0))
            done = activity(pid)
            looks[pid] = (done, number + 1 if done and done == before else 0)
            if looks[pid][1] == STILL_LOOKS:
                log.warning("Agent loop worker stands still and is killed", extra={"process_id": pid})
                send_signal(pid, signal.SIGKILL)
        seen = looks


def _workers(mark: str) -> Iterator[int]:
    """Yield the processes of replaceable workers with a mark."""
    needle = f"{PROCESS_MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            title = _TITLE.match((entry / "cmdline").read_bytes())
            if title and title[1].decode() in REPLACEABLE and needle in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)
        except OSError:
            continue


def activity(pid: int) -> str:
    """Return how much a process has done, which differs as soon as one of its threads has run.

    Empty if it is to run now, or waits for a disk: then it is not to blame. Threads of a Ray worker run a hundred times
    a second even while it has nothing to do.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if fields[_STATE] in "RD":
            return ""
        switches = [
            int(number)
            for status in Path(f"/proc/{pid}/task").glob("*/status")
            for number in _SWITCHES.findall(status.read_text())
        ]
    except OSError:
        return ""
    return f"{fields[_USER_TIME]} {fields[_USER_TIME + 1]} {sum(switches)}" if any(switches) else ""
