"""Replaces `python`: lets the fork server run what the interpreter would run, and ends as that process ends.

It is run as a script by a bare interpreter without site-packages, which takes milliseconds. It forwards signals to the
forked process; when it is killed, the fork server kills that process.
"""

import json
import os
import signal
import socket
import struct
import sys
import time

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_CONNECT_SECONDS, _START_SECONDS = 5.0, 45.0
"""Time for a server to be there; more where it is known to start. Ray waits a minute for its workers."""


def main() -> None:
    path, arguments = sys.argv[1], sys.argv[2:]
    # The forked process may run, and be sent a signal, before this one can forward it.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    connection = _connect(path)
    if connection is None or not _send_request(connection, arguments):
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execv(sys.executable, [sys.executable, *arguments])
    for number in _FORWARDED:
        signal.signal(number, lambda received, frame: connection.send(bytes([received])))
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    for descriptor in _open_descriptors(connection.fileno()):
        if descriptor > 2:
            os.close(descriptor)
    answer = connection.recv(4)
    code = struct.unpack("!i", answer)[0] if len(answer) == 4 else -signal.SIGKILL
    _end_with(code)


def _send_request(connection: socket.socket, arguments: "list[str]") -> bool:
    """Send the request; return True if the fork server executes it."""
    descriptors = _open_descriptors(connection.fileno())
    folder = os.getcwd()  # noqa: PTH109
    request = json.dumps(
        {"arguments": arguments, "environment": dict(os.environ), "folder": folder, "descriptors": descriptors}
    ).encode("utf-8", "surrogateescape")
    try:
        socket.send_fds(connection, [struct.pack("!I", len(request))], descriptors)
        connection.sendall(request)
        return connection.recv(1) == b"y"
    except OSError:
        return False


def _connect(path: str) -> "socket.socket | None":
    """Connect to the fork server; return None if there is none."""
    began = time.monotonic()
    while time.monotonic() < began + (_START_SECONDS if _is_starting(path) else _CONNECT_SECONDS):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(path)
        except FileNotFoundError:
            if not os.path.isdir(os.path.dirname(path)):  # noqa: PTH112, PTH120
                return None
            # The server binds its socket first, but may itself have to wait for the imports of another one.
            time.sleep(0.05)
        except OSError:
            return None
        else:
            return connection
    return None


def _is_starting(path: str) -> bool:
    """Return whether the process that becomes the fork server is there."""
    try:
        with open(path + ".pid") as file:  # noqa: PTH123
            os.kill(int(file.read()), 0)
    except (OSError, ValueError):
        return False
    return True


def _open_descriptors(own: int) -> "list[int]":
    descriptors = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 (pathlib takes as long to import as all the rest)
        descriptor = int(name)
        if descriptor == own:
            continue
        try:
            os.fstat(descriptor)
        except OSError:
            continue
        descriptors.append(descriptor)
    return sorted(descriptors)


def _end_with(code: int) -> None:
    """End as the forked process did; a negative `code` is the signal that ended it."""
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main()
