"""Processes of the run in this process's own pid namespace: found by their command line, and given a signal."""

import os
import re
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

HIGHEST_FIRST_PID = 9
"""The benchmark is among the first processes of a namespace of its own, and never among those of a machine."""


def find(pattern: str) -> list[int]:
    """Return the processes whose command line or name matches, oldest first."""
    return sorted(pid for pid in _all() if re.search(pattern, describe(pid)))


def describe(pid: int) -> str:
    """Return name and command line of a process; empty if there is none."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return f"{Path(f'/proc/{pid}/comm').read_text().strip()} {words}"
    except OSError:
        return ""


def children_among(pids: Sequence[int]) -> list[int]:
    """Return those of the processes that another of them has started."""
    return [pid for pid in pids if _parent(pid) in pids]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    except OSError:
        return 0


def resident_kilobytes(pid: int) -> int:
    """Return the memory of a process; 0 if there is none."""
    try:
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) if found else 0


def send(pids: list[int], name: str) -> None:
    """Send a signal to processes of this namespace."""
    require_own_namespace()
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.Signals[name])


def require_own_namespace() -> None:
    """Refuse to go on where processes of others could be seen."""
    if os.environ.get("CHAOS_INSIDE") != "1" or os.getpid() > HIGHEST_FIRST_PID:
        raise RuntimeError("Nothing is injured outside of namespaces of the benchmark's own.")


def _all() -> list[int]:
    own = {1, os.getpid(), os.getppid()}
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and int(path.name) not in own]
