"""Client of a fork server: starts it, passes tasks to its supervisors, and keeps idle supervisors for later tasks."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from turnmill.core.errors import SandboxError
from turnmill.sandboxes import memory_files, wire, workspaces
from turnmill.sandboxes.barriers import Barriers
from turnmill.sandboxes.base import Function, SandboxResult, SandboxTask

WEAKER_SANDBOX = "--sandbox=process runs without these barriers, on machines where nothing is at stake"
START_SECONDS = 60.0
GRACE_SECONDS = 30.0
"""Time for everything but the task's own run: waiting for a process, writing and reading its files."""

IDLE_SECONDS = 10.0
"""Time after which idle supervisors beyond the spares are closed."""

TASKS_PER_SUPERVISOR = 1000
"""Tasks after which a supervisor is replaced, in case its memory has grown."""

_STOP_SECONDS = 15.0
_CONTROL_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ForkServerSettings:
    """Settings that all fork servers of a sandbox share; see `ForkSandbox`."""

    parent_folder: Path
    preload: tuple[str, ...]
    packages: tuple[str, ...]
    spares: int
    namespaces: bool
    confined: bool


class ForkServerClient:
    """A fork server that has imported `warm_packages`, and the connections to its supervisors."""

    def __init__(self, settings: ForkServerSettings, warm_packages: tuple[str, ...], *, network: bool) -> None:
        self._settings = settings
        self._warm_packages = warm_packages
        self._network = network
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._idle: dict[bool, list[_SupervisorConnection]] = {False: [], True: []}
        """Idle supervisors, by whether they have a persistent worker."""

        self._trim_timer: asyncio.TimerHandle | None = None
        self._closed = False
        self.barriers = Barriers()

    @property
    def is_alive(self) -> bool:
        """True if the process runs."""
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        """Start the fork server and wait until it accepts tasks; raises SandboxError if it does not."""
        self._folder = Path(tempfile.mkdtemp(prefix="turnmill-sandbox-", dir=self._settings.parent_folder))
        self._folder.chmod(0o711)
        (self._folder / workspaces.TASKS).mkdir(mode=0o711)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        options = wire.ForkServerOptions(
            folder=str(self._folder),
            control=theirs.fileno(),
            import_path=tuple(path for path in sys.path if path),
            preload=self._settings.preload,
            packages=self._settings.packages,
            warm_packages=self._warm_packages,
            network=self._network,
            namespaces=self._settings.namespaces,
            confined=self._settings.confined,
        )
        with theirs:
            self._process = await asyncio.to_thread(_spawn, options)
        try:
            async with asyncio.timeout(START_SECONDS):
                message = await asyncio.get_running_loop().sock_recv(self._control, _CONTROL_BYTES)
        except TimeoutError:
            raise SandboxError(f"the sandbox process was not ready after {START_SECONDS:.0f} s") from None
        report = json.loads(message) if message else {"failure": "it died"}
        if "failure" in report:
            raise SandboxError(f"the sandbox process could not start: {report['failure']}. {WEAKER_SANDBOX}")
        self.barriers = Barriers(**report)
        self._idle[False] = [await self._connect(persistent=False) for _ in range(self._settings.spares)]

    async def run(self, task: SandboxTask) -> SandboxResult:
        """Pass a task to an idle supervisor and wait for its report; raises SandboxError if there is none."""
        persistent = (
            isinstance(task.program, Function) and task.program.persistent and self.barriers.allows_persistent_workers
        )
        supervisor = None
        try:
            async with asyncio.timeout(task.limits.seconds + GRACE_SECONDS):
                with ExitStack() as stack:
                    copies = [_open(path, stack) for path in task.copies.values()]
                    supervisor = self._take_idle(persistent) or await self._connect(persistent=persistent)
                    report, contents = await supervisor.exchange(task, copies)
        except TimeoutError:
            raise SandboxError("the sandbox did not report in time") from None
        except EOFError:
            raise SandboxError("the sandbox process ended before the task did") from None
        except OSError as error:
            raise SandboxError(f"the sandbox process went away: {error}") from error
        finally:
            if supervisor is not None:
                self._put_back(supervisor)
        if report.failure is not None:
            raise SandboxError(f"the sandbox could not run the task: {report.failure}")
        return wire.to_result(report, contents)

    async def _connect(self, *, persistent: bool) -> "_SupervisorConnection":
        """Make the fork server fork a supervisor for a new connection."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            try:
                await self._send_connection(theirs, wire.PERSISTENT_WORKER if persistent else wire.FORK_PER_TASK)
                return _SupervisorConnection(ours, persistent)
            except BaseException:
                ours.close()
                raise

    async def _send_connection(self, connection: socket.socket, kind: bytes) -> None:
        while True:
            try:
                socket.send_fds(self._control, [kind], [connection.fileno()])
                return
            except BlockingIOError:
                await asyncio.sleep(0.002)  # The queue is full for a moment.

    def _take_idle(self, persistent: bool) -> "_SupervisorConnection | None":
        """Return the supervisor that ran last, whose memory is in caches."""
        while self._idle[persistent]:
            supervisor = self._idle[persistent].pop()
            if supervisor.is_ready:
                return supervisor
            supervisor.close()
        return None

    def _put_back(self, supervisor: "_SupervisorConnection") -> None:
        if self._closed or not supervisor.is_ready or supervisor.num_tasks >= TASKS_PER_SUPERVISOR:
            supervisor.close()
            return
        self._idle[supervisor.persistent].append(supervisor)
        if self._trim_timer is None and self._has_too_many_idle():
            self._trim_timer = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._trim)

    def _trim(self) -> None:
        """Close supervisors that have been idle for IDLE_SECONDS, except the spares."""
        now = time.monotonic()
        for idle in self._idle.values():
            while len(idle) > self._settings.spares and now - idle[0].last_used >= IDLE_SECONDS:
                idle.pop(0).close()
        loop = asyncio.get_running_loop()
        self._trim_timer = loop.call_later(IDLE_SECONDS, self._trim) if self._has_too_many_idle() else None

    def _has_too_many_idle(self) -> bool:
        return max(map(len, self._idle.values())) > self._settings.spares

    def close(self) -> None:
        """Close all connections: the fork server then ends its tasks and exits."""
        self._closed = True
        if self._trim_timer is not None:
            self._trim_timer.cancel()
        for supervisor in (*self._idle[False], *self._idle[True]):
            supervisor.close()
        if self._process is not None:
            self._control.close()

    def wait(self) -> None:
        """Wait for the process to exit, kill it if necessary, and delete its folder."""
        if self._process is not None:
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._folder is not None:
            workspaces.remove_root(str(self._folder))


def _spawn(options: wire.ForkServerOptions) -> subprocess.Popen[bytes]:
    environment = {
        "PYTHONPATH": os.pathsep.join(options.import_path),
        "LANG": "C.UTF-8",
        "PATH": os.defpath,
        # Threads of numerical libraries would not survive the fork.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "turnmill.sandboxes.fork_server", options.to_json()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=environment,
        pass_fds=(options.control,),
        start_new_session=True,
    )


@dataclass(slots=True)
class _SupervisorConnection:
    """Connection to a supervisor; it accepts tasks unless the last one ended without a report."""

    connection: socket.socket
    persistent: bool
    num_tasks: int = 0
    last_used: float = 0.0
    is_busy: bool = False

    @property
    def is_ready(self) -> bool:
        if self.is_busy:
            return False
        try:
            # An idle supervisor sends nothing: only the end of the connection can be read.
            self.connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    async def exchange(self, task: SandboxTask, copies: Sequence[int]) -> tuple[wire.Report, list[bytes]]:
        """Send a task with the descriptors of its copies, and return the report with the contents of its files."""
        self.is_busy = True
        self.num_tasks += 1
        request = wire.pack_task(task)
        file = memory_files.create(request, task.stdin)
        try:
            socket.send_fds(self.connection, [wire.outline(task, request).to_json()], [file, *copies])
        finally:
            os.close(file)
        await _readable(self.connection)
        text, files, _, _ = socket.recv_fds(self.connection, wire.PACKET_BYTES, wire.MAX_FILES)
        try:
            if not text:
                raise EOFError
            report = wire.Report.from_json(text)
            remaining = iter(files)
            contents = [memory_files.read(next(remaining), size) if size else b"" for size in report.sizes]
        finally:
            for descriptor in files:
                os.close(descriptor)
        self.is_busy, self.last_used = report.last, time.monotonic()
        return report, contents

    def close(self) -> None:
        """Close the connection; the supervisor then ends its task and exits."""
        self.connection.close()


async def _readable(connection: socket.socket) -> None:
    """Wait until the socket can be read, or its other end is closed."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(connection, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection)


def _open(path: str, stack: ExitStack) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise SandboxError(f"{path} cannot be copied to a task: {error.strerror}") from error
    stack.callback(os.close, descriptor)
    return descriptor
