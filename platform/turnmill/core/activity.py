"""Whether a process of this machine does anything: one that is stopped looks from outside like one that only waits."""

import ctypes
import re
import threading
import time
from pathlib import Path

PULSE_SECONDS = 0.2

_THREAD = "activity"
_PR_SET_NAME = 15
_SWITCHES = re.compile(r"ctxt_switches:\s+(\d+)")
_BUSY = re.compile(r"^State:\s+[RD]|^TracerPid:\s+[1-9]", re.MULTILINE)
# Of /proc/PID/stat, counted after the name of the program: proc_pid_stat(5).
_USER_TIME = 11


def activity(pid: int) -> str:
    """Return how much a process has done, which differs as soon as one of its threads has run.

    Empty if a thread is to run now, waits for a disk, or is held by a debugger: then the process is not to blame.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        threads = [status.read_text() for status in Path(f"/proc/{pid}/task").glob("*/status")]
    except OSError:
        return ""
    if any(map(_BUSY.search, threads)):
        return ""
    switches = [int(number) for thread in threads for number in _SWITCHES.findall(thread)]
    return f"{fields[_USER_TIME]} {fields[_USER_TIME + 1]} {sum(switches)}" if any(switches) else ""


class Stillness:
    """Looks at processes in which a thread runs several times a second unless they are stopped.

    Ray's workers have such threads, others begin one by `show_activity`.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[str, int]] = {}

    def look(self, pid: int) -> int:
        """Return at how many looks in a row a process had done nothing since the one before.

        One alone may have met a machine that was frozen.
        """
        before, number = self._seen.get(pid, ("", 0))
        done = activity(pid)
        number = number + 1 if done and done == before else 0
        self._seen[pid] = done, number
        return number


def show_activity() -> None:
    """Start a thread that runs several times a second, whatever the others wait for."""
    threading.Thread(target=_run_now_and_then, daemon=True, name=_THREAD).start()


def shows_activity(pid: int) -> bool:
    """Return whether a process has a thread that `show_activity` started; raises OSError for one that has ended."""
    return any((task / "comm").read_text().strip() == _THREAD for task in Path(f"/proc/{pid}/task").iterdir())


def _run_now_and_then() -> None:
    # Python names threads for itself alone.
    ctypes.CDLL(None).prctl(_PR_SET_NAME, _THREAD.encode(), 0, 0, 0)
    while True:
        time.sleep(PULSE_SECONDS)
