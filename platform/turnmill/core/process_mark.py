"""Environment variable of every process of a run."""

import ctypes
from pathlib import Path

PROCESS_MARK = "TURNMILL_PROCESS_MARK"
"""Its value is unique to an attempt at a run; by it the processes of the attempt are found and terminated."""

NO_MARK = "0" * 32
"""As long as a mark: the value with which a process is started whose forks get marks by `show_in_proc`."""

# Of /proc/PID/stat, counted after the name of the program: proc_pid_stat(5).
_ENV_START = 47


def show_in_proc(mark: str) -> None:
    """Write this process's mark to /proc/self/environ, where a fork has the value that its parent was started with.

    Raises ValueError if the parent was started without a mark, or with one of another length.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    environ = Path("/proc/self/environ").read_bytes()
    offset = (b"\0" + environ).find(f"\0{PROCESS_MARK}=".encode())
    first = offset + len(PROCESS_MARK) + 1
    if offset < 0 or environ.find(b"\0", first) - first != len(mark):
        raise ValueError(f"the process was not started with a {PROCESS_MARK} of {len(mark)} characters")
    ctypes.memmove(int(fields[_ENV_START]) + first, mark.encode(), len(mark))
