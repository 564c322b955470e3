"""A slow disk for chosen processes: their writes and flushes to a folder take time, without any rights.

The kernel holds each such system call until another process, here the one of the test, lets it go on (seccomp's user
notifications). Run as a program, this file gives the kernel the filter and then becomes the command that it is given.
"""

import ctypes
import fcntl
import os
import platform
import select
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_CALLS = {
    # write, pwrite64, writev, ftruncate, fsync, fdatasync, pwritev
    "x86_64": (1, 18, 20, 77, 74, 75, 296),
    "aarch64": (64, 68, 66, 46, 82, 83, 70),
}
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_NO_NEW_PRIVS, _SET_MODE_FILTER, _NEW_LISTENER = 38, 1, 1 << 3
_LOAD_NUMBER, _RETURN = (0x20, 0, 0, 0), 0x06
_ASK, _ALLOW = 0x7FC00000, 0x7FFF0000
_RECEIVE, _ANSWER, _GO_ON = 0xC0502100, 0xC0182101, 1
_NOTICE_BYTES = 80


class SlowDisk:
    """What is written into a folder takes `seconds` more each time; 0 makes the disk fast again."""

    def __init__(self, folder: Path, seconds: float, listener: socket.socket) -> None:
        self.seconds = seconds
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
                    threading.Thread(target=self._let_go, args=(notices, bytes(notice)), daemon=True).start()

    def _let_go(self, notices: int, notice: bytes) -> None:
        number, pid = struct.unpack_from("QI", notice)
        (descriptor,) = struct.unpack_from("i", notice, 32)
        with suppress(OSError):
            if os.path.realpath(f"/proc/{pid}/fd/{descriptor}").startswith(self._folder):
                self.num_delayed += 1
                time.sleep(self.seconds)
        with suppress(OSError):
            fcntl.ioctl(notices, _ANSWER, struct.pack("QqiI", number, 0, 0, _GO_ON))


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
            disk.seconds = 0.0
            listener.shutdown(socket.SHUT_RDWR)


def _main(address: str, *command: str) -> None:
    machine = platform.machine()
    numbers = _CALLS[machine]
    last = len(numbers)
    program = [_LOAD_NUMBER]
    program += [(0x15, last - index, 0, number) for index, number in enumerate(numbers)]
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
