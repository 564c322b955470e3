"""Supervisor of the embedded store: a program that runs the server and stops it when its owner ends.

It is started by `embedded` in a bare interpreter without site-packages, to start fast and stay small, so it imports the
standard library alone.
"""

import ctypes
import os
import select
import shutil
import signal
import sys

_PR_SET_PDEATHSIG = 1
_STOP_MILLISECONDS = 5000
_PAUSE_MILLISECONDS = 200
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(arguments: list[str]) -> int:
    """Run `OWNER_PID FOLDER once|again COMMAND...`: the command, until it or the owner ends or a signal arrives.

    With `again`, a command that was ended by a signal is restarted: it crashed, or was killed for memory.
    """
    owner, folder, again, command = int(arguments[0]), arguments[1], arguments[2] == "again", arguments[3:]
    asked, ask = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(ask)
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)
    try:
        owner_fd = os.pidfd_open(owner)
    except ProcessLookupError:
        owner_fd = -1
    # The owner is the parent. Another parent means that it has ended, and its pid may have been reused.
    if owner_fd < 0 or os.getppid() != owner:
        shutil.rmtree(folder, ignore_errors=True)
        return 0
    child = _start(command)
    child_fd = os.pidfd_open(child)
    while child_fd in _ready([owner_fd, child_fd, asked], None):
        exit_code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if exit_code >= 0 or not again:
            # The folder is kept: the owner finds the reason in its log.
            return exit_code
        if _ready([owner_fd, asked], _PAUSE_MILLISECONDS):
            shutil.rmtree(folder, ignore_errors=True)
            return 0
        os.close(child_fd)
        child = _start(command)
        child_fd = os.pidfd_open(child)
    os.kill(child, signal.SIGTERM)
    if not _ready([child_fd], _STOP_MILLISECONDS):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _ready(descriptors: list[int], milliseconds: int | None) -> list[int]:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(milliseconds)]


def _start(command: list[str]) -> int:
    supervisor = os.getpid()
    child = os.fork()
    if child:
        return child
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        if os.getppid() == supervisor:
            os.execv(command[0], command)
    finally:
        os._exit(127)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
