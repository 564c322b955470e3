"""A slow or full disk for chosen processes: their writes and flushes to a folder take time, or fail.

This needs no rights.
The kernel holds each such system call until another process, here the one of the test, lets it go on (seccomp's user
notifications). Run as a program, this file gives the kernel the filter and then becomes the command that it is given.
"""

import ctypes
import errno
import fcntl
import os
import platform
import select
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_CALLS = {
    # write, and pwrite64, writev, ftruncate, fsync, fdatasync, pwritev
    "x86_64": (1, 18, 20, 77, 74, 75, 296),
    "aarch64": (64, 68, 66, 46, 82, 83, 70),
}
_WAKE_UP_BYTES = 8
"""Size of a write to an eventfd, of which a gRPC server has thousands a second."""

_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_NO_NEW_PRIVS, _SET_MODE_FILTER, _NEW_LISTENER = 38, 1, 1 << 3
_LOAD_NUMBER, _LOAD_COUNT = (0x20, 0, 0, 0), (0x20, 0, 0, 32)
_JUMP_IF_EQUAL, _RETURN = 0x15, 0x06
_ASK, _ALLOW = 0x7FC00000, 0x7FFF0000
_RECEIVE, _ANSWER, _GO_ON = 0xC0502100, 0xC0182101, 1
_NOTICE_BYTES = 80


class SlowDisk:
    """What is written into a folder takes `seconds` more each time; 0 makes the disk fast again."""

    def __init__(self, folder: Path, seconds: float, listener: socket.socket) -> None:
        self.seconds = seconds
        self.is_full = False
        """Whether writes and flushes fail."""

        self.num_delayed = 0
        """Number of system calls that were delayed."""

        self._folder = os.path.realpath(folder)
        self._listener = listener

    def command(self, *words: str | Path) -> list[str]:
        """Return the command that runs another one on this disk."""
        return [sys.executable, "-I", "-S", __file__, self._listener.getsockname(), *map(str, words)]

    def serve(self) -> None:
        """Answer for every process that is started, until the listener is closed."""
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection:
                    _, (notices, *_), _, _ = socket.recv_fds(connection, 1, 1)
                threading.Thread(target=self._watch, args=(notices,), daemon=True).start()

    def _watch(self, notices: int) -> None:
        """Delay the calls of a process and of its children until they have ended."""
        poll = select.poll()
        poll.register(notices, select.POLLIN)
        while True:
            for _, events in poll.poll():
                if not events & select.POLLIN:
                    os.close(notices)
                    return
                notice = bytearray(_NOTICE_BYTES)
                with suppress(FileNotFoundError):
                    fcntl.ioctl(notices, _RECEIVE, notice)
                    number, pid = struct.unpack_from("QI", notice)
                    (descriptor,) = struct.unpack_from("i", notice, 32)
                    if self.is_full and self._is_here(pid, descriptor):
                        _let_go(notices, number, error=errno.ENOSPC)
                    elif self.seconds and self._is_here(pid, descriptor):
                        self.num_delayed += 1
                        threading.Timer(self.seconds, _let_go, (notices, number)).start()
                    else:
                        _let_go(notices, number)

    def _is_here(self, pid: int, descriptor: int) -> bool:
        try:
            return str(Path(f"/proc/{pid}/fd/{descriptor}").readlink()).startswith(self._folder)
        except OSError:
            return False


def _let_go(notices: int, number: int, error: int = 0) -> None:
    answer = struct.pack("QqiI", number, 0, -error, 0 if error else _GO_ON)
    # The process may have been killed meanwhile.
    with suppress(OSError):
        fcntl.ioctl(notices, _ANSWER, answer)


@contextmanager
def slow_disk(folder: Path, seconds: float) -> Iterator[SlowDisk]:
    """Make a folder slow for the processes that are started by `SlowDisk.command`."""
    # Names of sockets are limited to 107 bytes.
    with tempfile.TemporaryDirectory() as place, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{place}/s")
        listener.listen()
        disk = SlowDisk(folder, seconds, listener)
        threading.Thread(target=disk.serve, daemon=True).start()
        try:
            yield disk
        finally:
            disk.seconds, disk.is_full = 0.0, False
            listener.shutdown(socket.SHUT_RDWR)


def _main(address: str, *command: str) -> None:
    machine = platform.machine()
    write, *others = _CALLS[machine]
    wake_up = (_JUMP_IF_EQUAL, len(others), 1 + len(others), _WAKE_UP_BYTES)
    program = [_LOAD_NUMBER, (_JUMP_IF_EQUAL, 0, 2, write), _LOAD_COUNT, wake_up]
    program += [(_JUMP_IF_EQUAL, len(others) - index, 0, number) for index, number in enumerate(others)]
    program += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ASK)]
    code = b"".join(struct.pack("HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code)
    rules = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        notices = libc.syscall(_SECCOMP[machine], _SET_MODE_FILTER, _NEW_LISTENER, rules)
        if notices < 0:
            raise OSError(ctypes.get_errno(), "seccomp")
        socket.send_fds(connection, [b"s"], [notices])
    os.close(notices)
    os.execvp(command[0], command)


if __name__ == "__main__":
    _main(*sys.argv[1:])
