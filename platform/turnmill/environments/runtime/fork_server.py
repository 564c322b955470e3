"""A process that forks environment processes, so that one costs milliseconds and few megabytes.

multiprocessing's own fork server imports the parent's main script into every child, which under Ray means
all of Ray; this one imports what environments need and nothing else. Every signal to an environment process
is sent here, by its parent, so that no recycled process id is ever hit.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import logging
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

from turnmill.core.errors import EnvironmentFailedError
from turnmill.environments import registry
from turnmill.environments.runtime.worker import WorkerSettings, encode, serve

log = logging.getLogger(__name__)

_PRELOADED = ("numpy", "PIL.GifImagePlugin", "turnmill.environments.rendering")
_LARGEST_COMMAND_BYTES = 128 * 1024
_PARENT_POLL_SECONDS = 5.0
_STOP_SECONDS = 5.0
# Some ninety requests fit into the socket while the server imports; on a busy machine that takes a while.
_SEND_SECONDS = 60.0
_PR_SET_PDEATHSIG = 1


class ForkServer:
    """The side of the fork server that a trainer holds; usable from every thread.

    With a `python` of its own the server has that interpreter's packages, turnmill among them, and of this process only
    the folders that no installation put on its path.
    """

    def __init__(self, python: str | None = None) -> None:
        self._python = python
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._last_key = 0

    @property
    def pid(self) -> int | None:
        """Process id of the server; None before the first fork."""
        return self._process.pid if self._process else None

    def fork(self, settings: WorkerSettings) -> tuple[int, socket.socket]:
        """Start an environment process; its key for `kill`, and the socket on which it answers."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs, self._lock:
            self._last_key += 1
            path = _import_path() if self._python is None else []
            command = json.dumps({"fork": self._last_key, "settings": settings.model_dump(), "path": path}).encode()
            if len(command) > _LARGEST_COMMAND_BYTES:
                ours.close()
                raise EnvironmentFailedError(
                    f"environment.options take {len(command)} bytes and may take {_LARGEST_COMMAND_BYTES}: "
                    "put large data into a file and give its path."
                )
            try:
                self._send(command, theirs)
            except OSError as error:
                ours.close()
                raise EnvironmentFailedError(f"No environment process could be started: {error}.") from error
            return self._last_key, ours

    def kill(self, key: int) -> None:
        """End an environment process and everything it started."""
        with self._lock:
            # Where there is no server there are no environment processes: they die with it.
            if self._control is not None:
                with contextlib.suppress(OSError):
                    self._control.send(json.dumps({"kill": key}).encode())

    def close(self) -> None:
        """End the server and with it every environment process."""
        with self._lock:
            self._stop()

    def _send(self, command: bytes, connection: socket.socket) -> None:
        if self._control is not None:
            try:
                socket.send_fds(self._control, [command], [connection.fileno()])
                return
            except OSError:
                log.warning("The fork server of environments is gone and is started again")
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
                    "turnmill.environments.runtime.fork_server",
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=_server_environment(_import_path() if self._python is None else _own_folders()),
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


def _own_folders() -> list[str]:
    """What is on the path besides this interpreter's own library and packages."""
    installed = {str(Path(prefix).resolve()) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    return [
        entry
        for entry in _import_path()
        if Path(entry).is_dir() and not any(Path(entry).resolve().is_relative_to(prefix) for prefix in installed)
    ]


def _server_environment(path: list[str]) -> dict[str, str]:
    # One thread each: there are many environment processes and few cores.
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
    """The one fork server of this process, for each interpreter."""
    with _shared_lock:
        # After a fork of this process the parent's server is the parent's alone.
        return _shared.setdefault((os.getpid(), python), ForkServer(python))


class _Server:
    """The side that forks."""

    def __init__(self, control: socket.socket, parent_pid: int) -> None:
        self.control = control
        self.parent_pid = parent_pid
        self.pids: dict[int, int] = {}
        """Process ids of living children by key."""

        self.connections: dict[int, socket.socket] = {}
        """The children's ends of their sockets, to tell of their deaths."""

        self._preloaded: set[str] = set()

    def run(self) -> None:
        """Obey until the parent hangs up or is gone."""
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        os.set_blocking(wake_read, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        with selectors.DefaultSelector() as selector:
            selector.register(self.control, selectors.EVENT_READ)
            selector.register(wake_read, selectors.EVENT_READ)
            while os.getppid() == self.parent_pid:
                ready = [key.fileobj for key, _ in selector.select(_PARENT_POLL_SECONDS)]
                if wake_read in ready:
                    os.read(wake_read, 4096)
                if self.control in ready and not self._obey():
                    break
                self._reap()
        for pid in self.pids.values():
            _kill_group(pid)

    def _obey(self) -> bool:
        message, descriptors, _, _ = socket.recv_fds(self.control, _LARGEST_COMMAND_BYTES, 1)
        if not message:
            return False
        match json.loads(message):
            case {"fork": int(key), "settings": dict(settings), "path": list(path)}:
                self._fork(key, socket.socket(fileno=descriptors[0]), settings, path)
            case {"kill": int(key)} if key in self.pids:
                _kill_group(self.pids[key])
        return True

    def _fork(self, key: int, connection: socket.socket, settings: dict[str, Any], path: list[str]) -> None:
        self._preload(str(settings.get("name")))
        server_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            _tell(connection, {"error": f"no process could be forked: {error}"})
            connection.close()
            return
        if pid == 0:
            sys.path[:] = path or sys.path
            _become_worker(connection, settings, server_pid)
        self.pids[key], self.connections[key] = pid, connection

    def _preload(self, name: str) -> None:
        """Import what the child will need, once for all of them."""
        if name not in self._preloaded:
            self._preloaded.add(name)
            registry.preload(name)
            _share()

    def _reap(self) -> None:
        """Tell of every child that died, and end what it left behind."""
        while self.pids:
            # Not yet collected, a dead child keeps its process id, and the signal to its group goes where it should.
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return
            _kill_group(found.si_pid)
            _, status = os.waitpid(found.si_pid, 0)
            key = next(key for key, pid in self.pids.items() if pid == found.si_pid)
            del self.pids[key]
            with self.connections.pop(key) as connection:
                _tell(connection, {"exited": os.waitstatus_to_exitcode(status)})


def _tell(connection: socket.socket, message: dict[str, Any]) -> None:
    # Nobody may be listening any more, and the server waits for nobody.
    with contextlib.suppress(OSError):
        connection.send(encode(message), socket.MSG_DONTWAIT)


def _kill_group(pid: int) -> None:
    # The child may not have come to lead its group yet.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _become_worker(connection: socket.socket, settings: dict[str, Any], server_pid: int) -> NoReturn:
    """Turn a fresh fork into an environment process; never returns."""
    exit_code = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != server_pid:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _keep_only(connection)
        worker = WorkerSettings.model_validate(settings)
        if worker.memory_limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (worker.memory_limit_bytes, worker.memory_limit_bytes))
        serve(connection, worker)
        exit_code = 0
    except (BrokenPipeError, ConnectionResetError):
        # The trainer hung up in the middle of an answer.
        exit_code = 0
    except BaseException:
        log.exception("An environment process failed")
    finally:
        os._exit(exit_code)


def _keep_only(connection: socket.socket) -> None:
    """Close every file but the socket and the error stream; what environments print goes nowhere."""
    kept = connection.fileno()
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def main(control_descriptor: int, parent_pid: int) -> None:
    """Run the server on an inherited socket."""
    # Ctrl-C reaches the whole terminal; the trainer decides what ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=control_descriptor)
    control.set_inheritable(False)
    for module in _PRELOADED:
        importlib.import_module(module)
    _share()
    _Server(control, parent_pid).run()


def _share() -> None:
    """What is loaded so far is shared with every child for as long as nobody writes to it."""
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
