"""Client of the fork server, a process that forks environment processes in milliseconds and a few megabytes each.

multiprocessing's own fork server imports the parent's main script into every child, which under Ray means
all of Ray; this one imports what environments need and nothing else. Every signal to an environment process
is sent here, by its parent, so that no recycled process id is ever hit.
"""

import atexit
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

from turnmill.core.activity import is_stopped
from turnmill.core.errors import EnvironmentFailedError
from turnmill.environments.runtime.fork_server_main import MAX_COMMAND_BYTES
from turnmill.environments.runtime.worker import WorkerSettings

log = logging.getLogger(__name__)

_STOP_SECONDS = 5.0
# About ninety requests fit into the socket's buffer while the server imports, which takes long on a busy machine.
_SEND_SECONDS = 60.0


class ForkServer:
    """Starts the fork server and sends it commands; thread-safe.

    With another interpreter, `python`, the server uses that interpreter's packages, turnmill among them, and of this
    process's `sys.path` only the folders outside of its installation.
    """

    def __init__(self, python: str | None = None) -> None:
        self._python = python
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._last_key = 0

    @property
    def pid(self) -> int | None:
        """Process id of the server, or None before the first fork."""
        return self._process.pid if self._process else None

    def fork(self, settings: WorkerSettings) -> tuple[int, socket.socket]:
        """Start an environment process; return its key for `kill` and the socket on which it answers.

        Raises EnvironmentFailedError if no process can be started or the options are too large.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs, self._lock:
            self._last_key += 1
            path = _import_path() if self._python is None else []
            command = json.dumps({"fork": self._last_key, "settings": settings.model_dump(), "path": path}).encode()
            if len(command) > MAX_COMMAND_BYTES:
                ours.close()
                raise EnvironmentFailedError(
                    f"environment.options take {len(command)} bytes and may take {MAX_COMMAND_BYTES}: "
                    "put large data into a file and give its path."
                )
            try:
                self._send(command, theirs)
            except OSError as error:
                ours.close()
                raise EnvironmentFailedError(f"No environment process could be started: {error}.") from error
            return self._last_key, ours

    def kill(self, key: int) -> None:
        """Kill an environment process and its process group."""
        with self._lock:
            # Without a server there are no environment processes: they die with it.
            if self._control is not None:
                with contextlib.suppress(OSError):
                    self._control.send(json.dumps({"kill": key}).encode())

    def kill_if_stopped(self) -> None:
        """Kill the server, and with it every environment process, if a signal has stopped it.

        A server that is stopped neither starts nor kills a process, and does not say how one ended.
        """
        with self._lock:
            if self._process is not None and is_stopped(self._process.pid):
                log.warning("The fork server of environments was stopped by a signal and is killed")
                self._process.kill()

    def close(self) -> None:
        """Stop the server and with it every environment process."""
        with self._lock:
            self._stop()

    def _send(self, command: bytes, connection: socket.socket) -> None:
        if self._control is not None:
            try:
                socket.send_fds(self._control, [command], [connection.fileno()])
                return
            except OSError:
                log.warning("The fork server of environments has died and is restarted")
        self._stop()
        control = self._start()
        socket.send_fds(control, [command], [connection.fileno()])

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_SEND_SECONDS)
        with theirs:
            atexit.register(self.close)
            self._process = subprocess.Popen(
                [
                    self._python or sys.executable,
                    "-P",
                    "-m",
                    "turnmill.environments.runtime.fork_server_main",
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=_server_variables(_import_path() if self._python is None else _folders_outside_installation()),
            )
        self._control = ours
        return ours

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


def _import_path() -> list[str]:
    return [str(Path(entry).absolute()) for entry in sys.path]


def _folders_outside_installation() -> list[str]:
    """Return the folders of `sys.path` that are not part of this interpreter's installation."""
    installed = {str(Path(prefix).resolve()) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    return [
        entry
        for entry in _import_path()
        if Path(entry).is_dir() and not any(Path(entry).resolve().is_relative_to(prefix) for prefix in installed)
    ]


def _server_variables(path: list[str]) -> dict[str, str]:
    # One thread per process: there are many environment processes and few cores.
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "PYGAME_HIDE_SUPPORT_PROMPT": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


_shared: dict[tuple[int, str | None], ForkServer] = {}
_shared_lock = threading.Lock()


def shared_fork_server(python: str | None = None) -> ForkServer:
    """Return this process's fork server for an interpreter; it is created at the first call."""
    with _shared_lock:
        # A forked child must not use its parent's server.
        return _shared.setdefault((os.getpid(), python), ForkServer(python))
