"""CPU time of a task with all its processes, also those that nobody waits for.

The kernel adds the CPU time of an ended process to that of a parent that waits for it. If the parent has switched that
off, as by ignoring SIGCHLD, the time is nowhere to be found, and many brief processes could use the whole machine. In
gVisor, the processes of a task are in a group, a cgroup of the controller `cpuacct`, which has all of it.
"""

import os
import resource
from collections import Counter
from collections.abc import Iterable, Mapping

from turnmill.sandboxes.measurements import Process, read_file
from turnmill.sandboxes.namespaces import CGROUPS


class TaskCpuTime:
    """Adds up the CPU time of a task from one measurement to the next.

    Once a process has ended without its parent's learning its CPU time, the task is charged for as many processors as
    it has threads at each measurement.
    """

    def __init__(self, earlier_seconds: float, now: float, group: str | None = None) -> None:
        """Begin at the time `now`; the task's processes have used `earlier_seconds` for earlier tasks.

        `group` is the folder of the group that has them, where there is one.
        """
        self._group = group
        self._earlier_group_seconds = _group_seconds(group) if group else 0.0
        self._waited = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.earlier_seconds = earlier_seconds
        self._measured_at = now
        self._processes: Mapping[int, Process] = {}
        self._known_seconds = 0.0
        self._lost_seconds = 0.0
        self._waited_faults = self._waited.ru_minflt
        self.loses_children = False
        """True if processes have ended whose CPU time is not known."""

    def ended_children_seconds(self) -> float:
        """Return the CPU time of processes of the task that this process has waited for."""
        waited = resource.getrusage(resource.RUSAGE_CHILDREN)
        before = self._waited
        return waited.ru_utime + waited.ru_stime - before.ru_utime - before.ru_stime

    def add(self, processes: Mapping[int, Process], listed: Iterable[int], now: float) -> float:
        """Return the CPU time until now, given the processes of the pids that were `listed` just before."""
        if self._group is not None:
            return _group_seconds(self._group) - self._earlier_group_seconds
        waited_faults = resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt
        if not self.loses_children:
            self.loses_children = loses_children(
                self._processes, processes, listed, waited_faults - self._waited_faults
            )
        living = sum(process.cpu_seconds for process in processes.values())
        known = max(self._known_seconds, living + self.ended_children_seconds() - self.earlier_seconds)
        if self.loses_children:
            threads = max(1, sum(process.threads for process in processes.values()))
            at_most = (now - self._measured_at) * min(threads, len(os.sched_getaffinity(0)))
            self._lost_seconds += max(0.0, at_most - (known - self._known_seconds))
        self._known_seconds, self._waited_faults = known, waited_faults
        self._processes, self._measured_at = processes, now
        return known + self._lost_seconds


def group_of(workspace: str) -> str:
    """Return the folder of the group for the tasks of a workspace."""
    return f"{CGROUPS}/{os.path.basename(workspace)}"


def join_group(group: str) -> None:
    """Put this process into a group, and with it all that it starts."""
    with open(f"{group}/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))


def _group_seconds(group: str) -> float:
    return int(read_file(f"{group}/cpuacct.usage")) / 1e9


def loses_children(
    before: Mapping[int, Process], now: Mapping[int, Process], listed: Iterable[int], waited_faults: int
) -> bool:
    """Return True if a process has ended since the measurement `before` without its parent's learning its CPU time.

    A process that is waited for adds its page faults to those of its parent's children, as it does its CPU time; faults
    are counted exactly, and no process is without. `listed` are all pids at the beginning of the measurement `now`, and
    `waited_faults` those of the children for which this process has waited in between.
    """
    remaining = set(listed)
    owed: Counter[int] = Counter()
    for pid, process in before.items():
        if pid not in remaining:
            heir = process.parent
            while heir in before and heir not in remaining:
                heir = before[heir].parent
            owed[heir] += process.faults + process.children_faults
    for heir, faults in owed.items():
        if heir not in before:
            learned = waited_faults
        elif heir in now:
            learned = waited_faults + now[heir].children_faults - before[heir].children_faults
        else:
            continue  # It has ended during the measurement.
        if learned < faults:
            return True
    return False
