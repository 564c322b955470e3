"""The sandboxes: clients, in the server's process, of a warm process that forks a confined child for every task."""

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from turnmill.core.errors import SandboxError
from turnmill.sandboxes import wire, workspace
from turnmill.sandboxes.base import Command, Function, Outcome, Python, Task
from turnmill.sandboxes.confinement import Barriers
from turnmill.sandboxes.self_test import find_missing
from turnmill.sandboxes.task_monitor import ALONE, ATTENDED, MAX_COPIES

log = logging.getLogger(__name__)

PACKAGES = ("numpy", "mpmath", "sympy")
"""From light to heavy: the more a process has imported, the longer it takes to fork."""

WEAKER = "--sandbox=process runs without these barriers, on machines where nothing is at stake"
START_SECONDS = 60.0
GRACE_SECONDS = 30.0
"""For everything about a task but its own time: waiting for a process, writing and reading its files."""

IDLE_SECONDS = 10.0
"""Supervisors beyond the spares that have had nothing to do for so long are ended."""

RUNS_PER_SUPERVISOR = 1000
"""After so many tasks another takes its place, should memory have crept up."""

_END_SECONDS = 15.0
_CONTROL_BYTES = 4096


class ForkSandbox:
    """Runs tasks behind rlimits, Landlock and a seccomp filter, and in namespaces of their own where those are allowed.

    `preload` names modules whose functions tasks may call; `packages` what user code may import besides the standard
    library. At most `max_running` tasks run at once; others wait. `spares` processes are kept ready for tasks to come.
    """

    confined = True

    def __init__(
        self,
        *,
        preload: Sequence[str] = (),
        packages: Sequence[str] = PACKAGES,
        max_running: int = 64,
        spares: int = 2,
        namespaces: bool = True,
        folder: Path | None = None,
    ) -> None:
        self._options: dict[str, Any] = {
            "preload": list(preload),
            "packages": list(packages),
            "spares": spares,
            "namespaces": namespaces,
            "confined": self.confined,
        }
        self._parent = folder or Path(tempfile.gettempdir())
        self._running = asyncio.Semaphore(max_running)
        self._zygotes: dict[Kind, Zygote] = {}
        self._starting = asyncio.Lock()
        self._closed = False

    async def start(self) -> Barriers:
        """Start, and try every barrier; raises SandboxError, naming what is missing. `run` does it where it was not."""
        zygote = await self._zygote(Kind())
        return zygote.barriers

    async def run(self, task: Task) -> Outcome:
        """Run to the end, or to the first limit; nothing of the run is left afterwards."""
        check(task)
        async with self._running:
            zygote = await self._zygote(self._kind(task))
            return await zygote.run(task)

    async def _try_barriers(self, zygote: "Zygote") -> None:
        if missing := await find_missing(zygote.run, zygote.barriers):
            raise SandboxError(f"the sandbox does not hold: {'; '.join(missing)}. {WEAKER}")
        log.info("Sandbox ready", extra=asdict(zygote.barriers))

    async def close(self) -> None:
        """End what runs; later runs raise SandboxError."""
        self._closed = True
        async with self._starting:
            zygotes = list(self._zygotes.values())
            self._zygotes.clear()
        for zygote in zygotes:
            zygote.abandon()
        for zygote in zygotes:
            await asyncio.to_thread(zygote.wait)

    def _kind(self, task: Task) -> "Kind":
        """The lightest zygote with everything that the task's text mentions; what it lacks is imported by the task."""
        packages = self._options["packages"]
        match task.program:
            case Python(source, _):
                mentioned = [name in source for name in packages]
            case Function(argument=argument):
                mentioned = [name.encode() in argument for name in packages]
            case Command():
                mentioned = []
        num_warm = max((number for number, is_mentioned in enumerate(mentioned, 1) if is_mentioned), default=0)
        return Kind(tuple(packages[:num_warm]), task.limits.network)

    async def _zygote(self, kind: "Kind") -> "Zygote":
        """The one for such tasks, started if there is none or it has died."""
        async with self._starting:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            zygote = self._zygotes.get(kind)
            if zygote is not None and zygote.is_alive:
                return zygote
            if zygote is not None:
                log.warning("Sandbox process died and is started anew", extra={"packages": kind.packages})
                zygote.abandon()
                await asyncio.to_thread(zygote.wait)
            zygote = Zygote(self._parent, {**self._options, "warm": kind.packages, "network": kind.network})
            try:
                await zygote.start()
                await self._try_barriers(zygote)
            except BaseException:
                zygote.abandon()
                await asyncio.to_thread(zygote.wait)
                raise
            self._zygotes[kind] = zygote
            return zygote


class ProcessSandbox(ForkSandbox):
    """The weaker one, for machines without Landlock: limits, and an end of all processes, but no wall around files."""

    confined = False

    async def _try_barriers(self, zygote: "Zygote") -> None:
        log.warning(
            "Sandbox is a plain process: code under it reads and writes what the server may, signals its processes and "
            "reaches its network. Use it on machines of your own alone, with code that you would run yourself."
        )


@dataclass(frozen=True, slots=True)
class Kind:
    """What a zygote has imported, and whether its tasks may use the network."""

    packages: tuple[str, ...] = ()
    network: bool = False


class Zygote:
    """A warm process and the way to it."""

    def __init__(self, parent: Path, options: dict[str, Any]) -> None:
        self._options = options
        self._parent = parent
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._spares: int = options["spares"]
        self._idle: dict[bool, list[_Supervisor]] = {False: [], True: []}
        """Those whose tasks have an attendant, and those whose have none."""

        self._trimming: asyncio.TimerHandle | None = None
        self._abandoned = False
        self.barriers = Barriers()

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        """Returns when it waits for tasks."""
        self._folder = Path(tempfile.mkdtemp(prefix="turnmill-sandbox-", dir=self._parent))
        self._folder.chmod(0o711)
        (self._folder / workspace.TASKS).mkdir(mode=0o711)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        options = {
            **self._options,
            "folder": str(self._folder),
            "control": theirs.fileno(),
            "path": [path for path in sys.path if path],
        }
        with theirs:
            self._process = await asyncio.to_thread(_spawn, options, theirs.fileno())
        try:
            async with asyncio.timeout(START_SECONDS):
                answer = await asyncio.get_running_loop().sock_recv(self._control, _CONTROL_BYTES)
        except TimeoutError:
            raise SandboxError(f"the sandbox process was not ready after {START_SECONDS:.0f} s") from None
        found = json.loads(answer) if answer else {"failure": "it died"}
        if "failure" in found:
            raise SandboxError(f"the sandbox process could not start: {found['failure']}. {WEAKER}")
        self.barriers = Barriers(**found)
        self._idle[False] = [await self._open(attended=False) for _ in range(self._spares)]

    async def run(self, task: Task) -> Outcome:
        """Hand a task to a supervisor that is free, and wait for its report."""
        message = wire.pack_task(task)
        attended = isinstance(task.program, Function) and task.program.attends and self.barriers.holds_attendants
        supervisor = None
        try:
            async with asyncio.timeout(task.limits.seconds + GRACE_SECONDS):
                with ExitStack() as stack:
                    opened = [_open(path, stack) for path in task.copies.values()]
                    supervisor = self._take_idle(attended) or await self._open(attended=attended)
                    report = await supervisor.exchange(message, opened)
        except TimeoutError:
            raise SandboxError("the sandbox did not report in time") from None
        except EOFError:
            raise SandboxError("the sandbox process ended before the task did") from None
        except OSError as error:
            raise SandboxError(f"the sandbox process went away: {error}") from error
        finally:
            if supervisor is not None:
                self._let_go(supervisor)
        header, blobs = report
        if "failure" in header:
            raise SandboxError(f"the sandbox could not run the task: {header['failure']}")
        return wire.unpack_outcome(header, blobs)

    async def _open(self, *, attended: bool) -> "_Supervisor":
        """Another supervisor, made by the zygote for our connection."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                await self._pass(theirs, ATTENDED if attended else ALONE)
                return _Supervisor(ours, *await asyncio.open_connection(sock=ours), attended)
            except BaseException:
                ours.close()
                raise

    async def _pass(self, connection: socket.socket, kind: bytes) -> None:
        while True:
            try:
                socket.send_fds(self._control, [kind], [connection.fileno()])
                return
            except BlockingIOError:
                await asyncio.sleep(0.002)  # The queue is full for a moment.

    def _take_idle(self, attended: bool) -> "_Supervisor | None":
        """The one that ran last: its memory is warm."""
        while self._idle[attended]:
            supervisor = self._idle[attended].pop()
            if supervisor.is_ready:
                return supervisor
            supervisor.close()
        return None

    def _let_go(self, supervisor: "_Supervisor") -> None:
        if self._abandoned or not supervisor.is_ready or supervisor.num_runs >= RUNS_PER_SUPERVISOR:
            supervisor.close()
            return
        self._idle[supervisor.attended].append(supervisor)
        if self._trimming is None and self._has_too_many():
            self._trimming = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._trim)

    def _trim(self) -> None:
        """Close what has not been needed for a while, the spares apart."""
        now = time.monotonic()
        for idle in self._idle.values():
            while len(idle) > self._spares and now - idle[0].last_used >= IDLE_SECONDS:
                idle.pop(0).close()
        loop = asyncio.get_running_loop()
        self._trimming = loop.call_later(IDLE_SECONDS, self._trim) if self._has_too_many() else None

    def _has_too_many(self) -> bool:
        return max(map(len, self._idle.values())) > self._spares

    def abandon(self) -> None:
        """Let go of it: it ends its tasks, and then itself."""
        self._abandoned = True
        if self._trimming is not None:
            self._trimming.cancel()
        for supervisor in (*self._idle[False], *self._idle[True]):
            supervisor.close()
        if self._process is not None:
            self._control.close()

    def wait(self) -> None:
        """Until it is gone, with its folder."""
        if self._process is not None:
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._folder is not None:
            workspace.remove_root(str(self._folder))


def _spawn(options: dict[str, object], control: int) -> subprocess.Popen[bytes]:
    environment = {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "LANG": "C.UTF-8",
        "PATH": os.defpath,
        # Threads of numerical libraries would not survive the fork.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "turnmill.sandboxes.zygote", json.dumps(options)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=environment,
        pass_fds=(control,),
        start_new_session=True,
    )


@dataclass(slots=True)
class _Supervisor:
    """The way to one supervisor; ready for a task unless the last one did not come to its report."""

    connection: socket.socket
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    attended: bool
    num_runs: int = 0
    last_used: float = 0.0
    is_busy: bool = False

    @property
    def is_ready(self) -> bool:
        return not (self.is_busy or self.reader.at_eof() or self.writer.is_closing())

    async def exchange(self, message: bytes, opened: Sequence[int]) -> tuple[dict[str, object], list[bytes]]:
        """Send a task, with files that were opened for it, and get the report."""
        self.is_busy = True
        self.num_runs += 1
        sent = socket.send_fds(self.connection, [message[: wire.HEAD_BYTES]], opened) if opened else 0
        self.writer.write(memoryview(message)[sent:])
        await self.writer.drain()
        head = await self.reader.readexactly(wire.HEAD_BYTES)
        body = await self.reader.readexactly(wire.body_bytes(head))
        self.is_busy, self.last_used = False, time.monotonic()
        return wire.unpack(head, body)

    def close(self) -> None:
        """To a supervisor this means to end whatever runs, and itself."""
        self.writer.transport.abort()


def _open(path: str, stack: ExitStack) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise SandboxError(f"{path} cannot be copied to a task: {error.strerror}") from error
    stack.callback(os.close, descriptor)
    return descriptor


def check(task: Task) -> None:
    """Raises SandboxError where a task names what cannot be."""
    for path in (*task.files, task.folder):
        if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts or "\0" in path or not path:
            raise SandboxError(f"path {path!r} is not inside the workspace; paths are relative, without '..'")
    for name in task.copies:
        if PurePosixPath(name).name != name or "\0" in name or len(task.copies) > MAX_COPIES:
            raise SandboxError(f"copy {name!r}: a task gets {MAX_COPIES} copies at most, by names without a slash")
    match task.program:
        case Command(arguments) if not arguments:
            raise SandboxError("a command needs at least the name of a program")
        case Function(target) if target.count(":") != 1:
            raise SandboxError(f"function {target!r} is not module:name")
        case Function(target, attends=True) if task != Task(task.program, limits=task.limits):
            raise SandboxError(f"function {target!r} attends: its task has limits, and nothing else")
