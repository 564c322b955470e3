"""Descendants of a supervisor: finding, awaiting and killing all of them."""

import errno
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress

from turnmill.core import forking
from turnmill.sandboxes.barriers import Barriers
from turnmill.sandboxes.confinement import change_user
from turnmill.sandboxes.measurements import read_file

_END_SECONDS = 10.0


def descendants() -> list[int]:
    """Return the pids of all descendants of this process, as /proc shows them."""
    found = children()
    for pid in found:
        found += _children(str(pid))
    return found


def children() -> list[int]:
    """Return the pids of the children of this process."""
    return list(_children("self"))


def children_of(process: int) -> list[int]:
    """Return the pids of the children of another process; all pids as /proc shows them."""
    return list(_children(str(process)))


def _children(process: str) -> Iterator[int]:
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{process}/task"):
            with suppress(OSError):
                yield from map(int, read_file(f"/proc/{process}/task/{thread}/children").split())


class ExitWatcher:
    """Makes the exit of a child pollable: `descriptor` becomes readable when `has_exited` may have become true."""

    def __init__(self, child: int) -> None:
        self._child = child
        self._wakeup: int | None = None
        try:
            self.descriptor = os.pidfd_open(child)
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.EPERM):
                raise
            # gVisor has no such call, a filter may refuse it, and a thread that waits could be signalled by the task.
            self.descriptor, self._wakeup = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            forking.wake_on_child_exit(self._wakeup)
            if self.has_exited():
                os.write(self._wakeup, b"!")

    def has_exited(self) -> bool:
        """Return True if the child has exited; it may not have been waited for yet."""
        if self._wakeup is not None:
            with suppress(BlockingIOError):
                os.read(self.descriptor, 4096)
        try:
            return os.waitid(os.P_PID, self._child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def close(self) -> None:
        """Stop watching."""
        if self._wakeup is not None:
            forking.ignore_child_exit()
            os.close(self._wakeup)
        os.close(self.descriptor)


def reap() -> dict[int, int]:
    """Return the wait statuses of the children that have ended, by pid."""
    ended = {}
    with suppress(ChildProcessError):
        while (result := os.waitpid(-1, os.WNOHANG))[0]:
            ended[result[0]] = result[1]
    return ended


def kill_descendants(barriers: Barriers, user: int | None) -> dict[int, int]:
    """Kill all descendants, including orphans and new sessions; return their wait statuses when all have ended.

    Raises TimeoutError if one survives SIGKILL, which only happens with a faulty kernel or disk.
    """
    ended: dict[int, int] = {}
    deadline, pause = time.monotonic() + _END_SECONDS, 0.0002
    while _has_children():
        _kill_all(barriers, user)
        ended |= reap()
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {descendants()} outlived SIGKILL")
        if _has_children():
            time.sleep(pause)
            pause = min(pause * 2, 0.02)
            ended |= reap()
    return ended


def kill_others() -> None:
    """Kill all other processes of the pid namespace, of which this process is the first, and wait for them."""
    with suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _kill_all(barriers: Barriers, user: int | None) -> None:
    """Kill with a single call if the kernel allows it, which no process can escape by forking."""
    is_first = barriers.pid_namespace and os.getpid() == 1
    if is_first or (barriers.has_scoped_signals and _parent_is_out_of_reach()):
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
    else:
        if user is not None:
            _kill_all_of_user(user)
        for pid in descendants():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _parent_is_out_of_reach() -> bool:
    """Return True if this process is in a Landlock domain, so that pid -1 means only that domain."""
    parent = os.getppid()
    if parent <= 0:
        return False
    try:
        os.kill(parent, 0)
    except PermissionError:
        return True
    return False


def _kill_all_of_user(user: int) -> None:
    """Kill all processes of a user, from a process that can signal no others."""
    killer = os.fork()
    if killer == 0:
        try:
            change_user(user)
            if os.getresuid() == (user, user, user):
                os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(killer, 0)
