"""The fork server: imports modules, then forks a process for every request of a client.

`python -m turnmill.runs.fork_server.server SOCKET PYTHON MODULE... -- MODULE...`: the modules after
`--` are imported at the first request, with its values of the variables in PINNED.
"""

import contextlib
import fcntl
import gc
import importlib
import json
import multiprocessing
import os
import random
import runpy
import selectors
import signal
import socket
import struct
import sys
import tempfile
import types
from dataclasses import dataclass
from pathlib import Path

from turnmill.core import forking
from turnmill.core.activity import show_activity
from turnmill.core.process_mark import PROCESS_MARK, show_in_proc

_MAX_DESCRIPTORS = 250
_LIMIT_REQUEST_BYTES = 4 * 1024**2
_FIRST_FREE_DESCRIPTOR = 400
ACCEPTED = b"y"
# Ray reads these at import, and passes them to its workers: they are the same for a whole cluster and job.
PINNED = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
# pyarrow's allocator handles forks.
_FORK_SAFE_THREADS = frozenset({"jemalloc_bg_thd"})


@dataclass(frozen=True, slots=True)
class Request:
    """A call of `python`, sent by a client."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    descriptors: list[int]
    received: list[int]
    connection: socket.socket


@dataclass(frozen=True, slots=True)
class Child:
    """A forked process, and the client that waits for it."""

    pid: int
    connection: socket.socket
    pidfd: int


def main(path: str, python: str, early: list[str], late: list[str]) -> None:
    """Serve until this process is killed; in a forked child, run the request."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # A client that connects before `listen` is refused, and takes the server for gone.
    unready = Path(f"{path}.new")
    listener.bind(str(unready))
    listener.listen(128)
    unready.rename(path)
    # Imports make millions of objects that stay: looking for garbage among them takes a fifth of the imports' time.
    gc.disable()
    for module in early:
        importlib.import_module(module)
    multiprocessing.set_executable(python)
    if (request := Server(listener, late).serve()) is not None:
        if f"{__package__}.server" not in request.arguments:  # another fork server has to do without threads
            show_activity()
        _run(request)


class Server:
    """Main loop of the fork server; `serve` returns in a forked child, and in the fork server if it cannot fork."""

    def __init__(self, listener: socket.socket, late: list[str]) -> None:
        self._listener = listener
        self._late = late
        self._pinned: dict[str, str | None] | None = None
        self._selector = selectors.DefaultSelector()
        self._children: dict[int, Child] = {}

    def serve(self) -> Request | None:
        """Fork for every request; return the request in the child, None if imports made forks unsafe."""
        self._selector.register(self._listener, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._listener:
                    self._handle_child(*key.data)
                elif (request := self._accept()) is not None:
                    if self._pinned is None and not self._import_late(request):
                        return None
                    if self._fork(request):
                        return request

    def _accept(self) -> Request | None:
        connection, _ = self._listener.accept()
        try:
            return _receive(connection)
        except (OSError, ValueError) as error:
            _log(f"request dropped: {error}")
            connection.close()
            return None

    def _import_late(self, request: Request) -> bool:
        """Import the modules that read the pinned variables; return True if forks are safe after that."""
        self._pinned = {name: request.environment.get(name) for name in PINNED}
        os.environ.update({name: value for name, value in self._pinned.items() if value is not None})
        for module in self._late:
            importlib.import_module(module)
        if threads := _other_threads():
            # A fork copies the calling thread alone: locks that others hold would stay locked.
            _log(f"imports started threads {threads}: no forking; processes start by themselves")
            return False
        if "ray" in sys.modules and not _ray_ids_differ_in_forks():
            _log("imports drew ids from Ray's generator, which forks would draw again: no forking")
            return False
        forking.freeze_memory()
        gc.enable()
        return True

    def _fork(self, request: Request) -> bool:
        """Fork, and return True in the child.

        A request with other values of pinned variables is left to its client, as is one for which no process can be
        forked.
        """
        pinned = {name: request.environment.get(name) for name in PINNED}
        what = " ".join(request.arguments)[:200]
        server_pid = os.getpid()
        if pinned == self._pinned:
            try:
                pid = os.fork()
            except OSError as error:
                _log(f"left to its client, as there is no fork ({error}): {what}")
                request.connection.close()
            else:
                if pid == 0:
                    self._close_server_files()
                    _set_up_process(request, server_pid)
                    return True
                _log(f"{pid}: {what}")
                self._watch(Child(pid, request.connection, os.pidfd_open(pid)))
        else:
            _log(f"left to its client, which wants {pinned}: {what}")
            request.connection.close()
        for descriptor in request.received:
            os.close(descriptor)
        return False

    def _watch(self, child: Child) -> None:
        self._children[child.pid] = child
        self._selector.register(child.pidfd, selectors.EVENT_READ, (child.pid, "ended"))
        self._selector.register(child.connection, selectors.EVENT_READ, (child.pid, "signal"))

    def _close_server_files(self) -> None:
        """Close the fork server's files, except the connection of the client that the fork is for."""
        self._selector.close()
        self._listener.close()
        for child in self._children.values():
            child.connection.close()
            os.close(child.pidfd)

    def _handle_child(self, pid: int, what: str) -> None:
        if (child := self._children.get(pid)) is None:
            return
        if what == "signal":
            number = _signal_from(child.connection)
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(child.pidfd, number)
            if number == signal.SIGKILL:
                self._selector.unregister(child.connection)
            return
        del self._children[pid]
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        _log(f"{pid}: ended with {code}")
        with contextlib.suppress(OSError):
            child.connection.send(struct.pack("!i", code))
        self._selector.unregister(child.pidfd)
        with contextlib.suppress(KeyError):
            self._selector.unregister(child.connection)
        child.connection.close()
        os.close(child.pidfd)


def _other_threads() -> list[str]:
    """Return the names of this process's threads, except those that start again in a fork by themselves."""
    others = (task for task in Path("/proc/self/task").iterdir() if int(task.name) != os.getpid())
    names = [(task / "comm").read_text().strip() for task in others]
    return [name for name in names if name not in _FORK_SAFE_THREADS]


def _ray_ids_differ_in_forks() -> bool:
    from turnmill.training.verl.patches import actor_class_ids  # imports Ray

    return actor_class_ids.differ_in_forks()


def _log(text: str) -> None:
    """Write a line to fork_server.log; logging would be configured in every fork as well."""
    print(text, file=sys.stderr, flush=True)


def _receive(connection: socket.socket) -> Request:
    """Receive a request. Raises ValueError if it is incomplete."""
    header, received, _, _ = socket.recv_fds(connection, 4, _MAX_DESCRIPTORS)
    length = struct.unpack("!I", header)[0] if len(header) == 4 else 0
    if not 0 < length <= _LIMIT_REQUEST_BYTES:
        raise ValueError(f"length {length}")
    content = bytearray()
    while len(content) < length:
        if not (part := connection.recv(length - len(content))):
            raise ValueError("cut short")
        content += part
    request = Request(
        **json.loads(content.decode("utf-8", "surrogateescape")), received=received, connection=connection
    )
    if len(request.descriptors) != len(request.received):
        raise ValueError(f"{len(request.received)} descriptors of {len(request.descriptors)} arrived")
    return request


def _signal_from(connection: socket.socket) -> int:
    """Return the signal that the client forwards; SIGKILL if the client has ended."""
    try:
        content = connection.recv(1)
    except OSError:
        content = b""
    return content[0] if content else signal.SIGKILL


def _set_up_process(request: Request, server_pid: int) -> None:
    """Turn this fork into the requested process: descriptors, environment, folder, seeds."""
    forking.die_with_parent()
    if os.getppid() != server_pid:
        os._exit(1)
    # Sent by the fork, not by the server, which may be killed after it has forked: a client that reads nothing runs
    # Python itself. If the client has ended meanwhile, its connection is closed.
    with contextlib.suppress(OSError), request.connection as connection:
        connection.send(ACCEPTED)
    # Ray kills the process group of a worker that ends; in the fork server's group, that would kill all others.
    os.setpgid(0, 0)
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE_DESCRIPTOR) for descriptor in request.received]
    for descriptor in request.received:
        os.close(descriptor)
    for source, target in zip(high, request.descriptors, strict=True):
        os.dup2(source, target, inheritable=True)
        os.close(source)
    started_with = os.environ.get(PROCESS_MARK)
    os.environ.clear()
    os.environ.update(request.environment)
    if (mark := request.environment.get(PROCESS_MARK)) not in (None, started_with):
        show_in_proc(mark)
    # The fork server may have been started without them.
    folders = [str(Path(folder).absolute()) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    # An imported module may have cached the folder of another environment.
    tempfile.tempdir = None
    os.chdir(request.folder)
    random.seed()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()


def _run(request: Request) -> None:
    """Run `-c CODE`, `-m MODULE` or a script as the interpreter does; flags before them are ignored."""
    rest = list(request.arguments)
    while rest and rest[0].startswith("-") and rest[0] not in ("-c", "-m"):
        flag = rest.pop(0)
        if flag in ("-W", "-X"):
            rest.pop(0)
    if not rest:
        raise SystemExit("the fork server runs -c CODE, -m MODULE or a script")
    main_module = types.ModuleType("__main__")
    main_module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main_module
    if rest[0] == "-c":
        sys.argv = ["-c", *rest[2:]]
        exec(compile(rest[1], "<string>", "exec"), main_module.__dict__)
    elif rest[0] == "-m":
        sys.argv = rest[1:]
        runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = rest
        sys.path.insert(0, str(Path(rest[0]).parent))
        main_module.__file__ = rest[0]
        exec(compile(Path(rest[0]).read_bytes(), rest[0], "exec"), main_module.__dict__)


if __name__ == "__main__":
    given = sys.argv[1:]
    separator = given.index("--")
    main(given[0], given[1], given[2:separator], given[separator + 1 :])
