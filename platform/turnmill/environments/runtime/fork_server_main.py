"""Main program of the fork server: it imports what environments need once and forks a process for each of them.

    python -m turnmill.environments.runtime.fork_server_main CONTROL_DESCRIPTOR PARENT_PID

It ends, and with it every environment process, when the parent closes the control socket or dies.
"""

import contextlib
import importlib
import json
import logging
import os
import resource
import selectors
import signal
import socket
import sys
from collections.abc import Mapping
from typing import NoReturn

from turnmill.core import forking
from turnmill.environments import registry
from turnmill.environments.runtime.worker import WorkerSettings, encode, serve

log = logging.getLogger(__name__)

MAX_COMMAND_BYTES = 128 * 1024
"""Longest message on the control socket."""

_PRELOADED = ("numpy", "PIL.GifImagePlugin", "turnmill.environments.rendering")
_PARENT_POLL_SECONDS = 5.0


class _Server:
    """Event loop of the fork server: commands from the parent, deaths of its children."""

    def __init__(self, control: socket.socket, parent_pid: int) -> None:
        self.control = control
        self.parent_pid = parent_pid
        self.pids: dict[int, int] = {}
        """Process ids of living children by key."""

        self.connections: dict[int, socket.socket] = {}
        """Children's ends of their sockets by key, to report exit codes after their deaths.

        They stay open until the parent discards the child: a request written to a closed one would lose the report.
        """

        self._discarded: set[int] = set()
        """Keys of living children that the parent has discarded."""

        self._preloaded: set[str] = set()

    def run(self) -> None:
        """Execute commands until the parent closes the control socket or dies."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        forking.wake_on_child_exit(wake_write)
        with selectors.DefaultSelector() as selector:
            selector.register(self.control, selectors.EVENT_READ)
            selector.register(wake_read, selectors.EVENT_READ)
            while os.getppid() == self.parent_pid:
                ready = [key.fileobj for key, _ in selector.select(_PARENT_POLL_SECONDS)]
                if wake_read in ready:
                    os.read(wake_read, 4096)
                if self.control in ready and not self._execute_command():
                    break
                self._reap()
        for pid in self.pids.values():
            _kill_group(pid)

    def _execute_command(self) -> bool:
        """Receive and execute one command; return False if the parent has closed the socket."""
        message, descriptors, _, _ = socket.recv_fds(self.control, MAX_COMMAND_BYTES, 1)
        if not message:
            return False
        match json.loads(message):
            case {"fork": int(key), "settings": dict(settings), "path": list(path)}:
                self._fork(key, socket.socket(fileno=descriptors[0]), settings, path)
            case {"kill": int(key)} if key in self.pids:
                self._discarded.add(key)
                _kill_group(self.pids[key])
            case {"kill": int(key)} if key in self.connections:
                self.connections.pop(key).close()
        return True

    def _fork(self, key: int, connection: socket.socket, settings: Mapping[str, object], path: list[str]) -> None:
        self._preload(str(settings.get("name")))
        server_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            _send(connection, {"error": f"no process could be forked: {error}"})
            connection.close()
            return
        if pid == 0:
            sys.path[:] = path or sys.path
            _become_worker(connection, settings, server_pid)
        self.pids[key], self.connections[key] = pid, connection
        # Not by the child, which may be stopped before it says anything.
        _send(connection, {"forked": pid})

    def _preload(self, name: str) -> None:
        """Import the environment's module before the fork, so that all children share its memory."""
        if name not in self._preloaded:
            self._preloaded.add(name)
            registry.preload(name)
            forking.freeze_memory()

    def _reap(self) -> None:
        """Kill the process group of every child that died, collect the child and report its exit code."""
        while self.pids:
            # Until a dead child is collected its process id is not reused: the signal cannot reach another group.
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return
            _kill_group(found.si_pid)
            _, status = os.waitpid(found.si_pid, 0)
            key = next(key for key, pid in self.pids.items() if pid == found.si_pid)
            del self.pids[key]
            if key in self._discarded:
                self._discarded.remove(key)
                self.connections.pop(key).close()
            else:
                _send(self.connections[key], {"exited": os.waitstatus_to_exitcode(status)})


def _send(connection: socket.socket, message: Mapping[str, object]) -> None:
    # The other end may be closed or its buffer full; the server must not block.
    with contextlib.suppress(OSError):
        connection.send(encode(message), socket.MSG_DONTWAIT)


def _kill_group(pid: int) -> None:
    # A child that was forked just now may not lead its group yet.
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _become_worker(connection: socket.socket, settings: Mapping[str, object], server_pid: int) -> NoReturn:
    """Turn a fresh fork into an environment process; never returns."""
    exit_code = 1
    try:
        os.setsid()
        forking.die_with_parent()
        if os.getppid() != server_pid:
            os._exit(1)
        forking.ignore_child_exit()
        _close_files_except(connection)
        worker = WorkerSettings.model_validate(settings)
        if worker.memory_limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (worker.memory_limit_bytes, worker.memory_limit_bytes))
        serve(connection, worker)
        exit_code = 0
    except (BrokenPipeError, ConnectionResetError):
        # The trainer closed the connection during a reply.
        exit_code = 0
    except BaseException:
        log.exception("An environment process failed")
    finally:
        os._exit(exit_code)


def _close_files_except(connection: socket.socket) -> None:
    """Close every file descriptor but the socket and standard error; standard output becomes /dev/null."""
    forking.close_descriptors(3, kept=connection.fileno())
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


def main(control_descriptor: int, parent_pid: int) -> None:
    """Run the server on an inherited socket."""
    # Ctrl-C signals every process of the terminal; here the trainer decides when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=control_descriptor)
    control.set_inheritable(False)
    for module in _PRELOADED:
        importlib.import_module(module)
    forking.freeze_memory()
    _Server(control, parent_pid).run()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
