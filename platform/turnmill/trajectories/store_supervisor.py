"""Supervisor of the embedded store: a program that runs the server and stops it when its owner ends.

It is started by `embedded` in a bare interpreter without site-packages, to start fast and stay small, so it imports the
standard library alone.
"""

import ctypes
import os
import select
import shutil
import signal
import socket
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_STOP_MILLISECONDS = 5000
_PAUSE_MILLISECONDS = 200
# Of /proc/PID/stat, counted after the name of the program: proc_pid_stat(5).
_STATE, _USER_TIME = 0, 11
_STOPPED = "T"
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_ASK_MILLISECONDS, _ANSWER_SECONDS = 250, 0.5
# One question without an answer may have met a machine that was frozen.
_STILL_QUESTIONS = 2


class _Stillness:
    """Notices a server that neither answers nor does anything: it is stopped, or waits for what never comes.

    One that computes, or waits for a processor or a disk, only takes its time. One that a signal has stopped is not
    asked, as it would not answer.
    """

    def __init__(self) -> None:
        self._questions = 0
        self._used: str | None = None

    def noted(self, pid: int, address: str) -> bool:
        """Ask the process something, and return whether it stands still."""
        stopped = _STOPPED in _stat(pid)[_STATE : _STATE + 1]
        answered = not stopped and _answers(address)
        used = _processor_time(pid)
        still = not answered and used is not None and used == self._used
        self._questions = self._questions + 1 if still else 0
        self._used = used
        return self._questions >= _STILL_QUESTIONS


def main(arguments: list[str]) -> int:
    """Run `OWNER_PID FOLDER once|again ADDRESS COMMAND...`: the command, until it or the owner ends, or a signal comes.

    With `again`, a command that was ended by a signal is restarted: it crashed, or was killed for memory. One that
    stands still is killed for that; the address at which it is asked is the path of a socket, or a port.
    """
    owner, folder, again, address = int(arguments[0]), arguments[1], arguments[2] == "again", arguments[3]
    command = arguments[4:]
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
    stillness = _Stillness()
    pause = _ASK_MILLISECONDS if again else None
    while not (ready := _ready([owner_fd, child_fd, asked], pause)) or child_fd in ready:
        if not ready:
            if stillness.noted(child, address):
                os.kill(child, signal.SIGKILL)
            continue
        exit_code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if exit_code >= 0 or not again:
            # The folder is kept: the owner finds the reason in its log.
            return exit_code
        if _ready([owner_fd, asked], _PAUSE_MILLISECONDS):
            shutil.rmtree(folder, ignore_errors=True)
            return 0
        os.close(child_fd)
        child, stillness = _start(command), _Stillness()
        child_fd = os.pidfd_open(child)
    os.kill(child, signal.SIGTERM)
    if not _ready([child_fd], _STOP_MILLISECONDS):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _answers(address: str) -> bool:
    """Return whether the server says anything, be it that it is loading, or wants a password first."""
    kind = socket.AF_INET if address.isdecimal() else socket.AF_UNIX
    with socket.socket(kind) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        try:
            connection.connect(("127.0.0.1", int(address)) if address.isdecimal() else address)
            connection.sendall(b"PING\r\n")
            return bool(connection.recv(1))
        except OSError:
            return False


def _processor_time(pid: int) -> str | None:
    """Return the time for which a process has used processors; None if it is to use one now, or waits for a disk."""
    fields = _stat(pid)
    return None if not fields or fields[_STATE] in "RD" else " ".join(fields[_USER_TIME : _USER_TIME + 2])


def _stat(pid: int) -> list[str]:
    """Return the fields of a process after the name of its program; none if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


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
