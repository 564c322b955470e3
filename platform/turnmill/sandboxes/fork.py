"""Sandboxes that run each task in a confined process, forked by a fork server."""

import asyncio
import logging
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath

from turnmill.core.errors import SandboxError
from turnmill.sandboxes.admission import Admission, default_budget
from turnmill.sandboxes.barriers import Barriers
from turnmill.sandboxes.base import MIB, Command, Function, Python, SandboxResult, SandboxTask
from turnmill.sandboxes.fork_server_client import WEAKER_SANDBOX, ForkServerClient, ForkServerSettings
from turnmill.sandboxes.self_test import find_failed_barriers
from turnmill.sandboxes.wire import MAX_COPIES

log = logging.getLogger(__name__)

PACKAGES = ("numpy", "mpmath", "sympy")
"""Packages in the order of their import time; forks of a process take longer the more it has imported."""


class ForkSandbox:
    """Runs tasks with rlimits, Landlock, a seccomp filter and, if allowed, namespaces of their own.

    `preload` names modules whose functions tasks may call, `packages` those that user code may import besides the
    standard library, lightest first. At most `max_running` tasks run at once, and their limits of memory add up to at
    most `memory_bytes`, by default a share of the machine's or container's; others wait. `spares` processes are kept
    ready. Workspaces are in `folder`, by default the temporary folder. `on_waiting` gets the number of waiting tasks.
    """

    confined = True

    def __init__(
        self,
        *,
        preload: Sequence[str] = (),
        packages: Sequence[str] = PACKAGES,
        max_running: int = 64,
        memory_bytes: int | None = None,
        spares: int = 2,
        namespaces: bool = True,
        folder: Path | None = None,
        on_waiting: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._packages = tuple(packages)
        self._settings = ForkServerSettings(
            folder or Path(tempfile.gettempdir()), tuple(preload), self._packages, spares, namespaces, self.confined
        )
        self._admission = Admission(
            max_running=max_running,
            memory_bytes=memory_bytes or default_budget(),
            on_waiting=on_waiting,
        )
        self._servers: dict[tuple[tuple[str, ...], bool], ForkServerClient] = {}
        self._starting = asyncio.Lock()
        self._closed = False

    async def start(self) -> Barriers:
        """Start and test all isolation; raises SandboxError with what is missing. `run` starts it if needed."""
        server = await self._server((), network=False)
        return server.barriers

    async def run(self, task: SandboxTask) -> SandboxResult:
        """Run a task until it ends or reaches a limit; none of its processes and files remain.

        Raises SandboxError if it could not be run.
        """
        check(task)
        packages, network = self._warm_packages(task), task.limits.network
        barriers = (await self._server(packages, network=network)).barriers
        arrived = time.monotonic()
        async with self._admission.admitted(barriers.memory_bytes(task.limits)):
            waiting_seconds = time.monotonic() - arrived
            if not barriers.own_mounts:
                require_room(self._settings.parent_folder, task.limits.file_bytes)
            # It may have died while the task waited.
            server = await self._server(packages, network=network)
            return replace(await server.run(task), waiting_seconds=waiting_seconds)

    async def _try_barriers(self, server: ForkServerClient) -> None:
        if failed := await find_failed_barriers(server.run, server.barriers):
            raise SandboxError(f"the sandbox does not hold: {'; '.join(failed)}. {WEAKER_SANDBOX}")
        log.info("Sandbox ready", extra=asdict(server.barriers))

    async def close(self) -> None:
        """End all running tasks; later calls of `run` raise SandboxError."""
        self._closed = True
        async with self._starting:
            servers = list(self._servers.values())
            self._servers.clear()
        for server in servers:
            server.close()
        for server in servers:
            await asyncio.to_thread(server.wait)

    def _warm_packages(self, task: SandboxTask) -> tuple[str, ...]:
        """Return the shortest list of packages that has all that the task's text mentions; the task imports others."""
        match task.program:
            case Python(source, _):
                mentioned = [name in source for name in self._packages]
            case Function(argument=argument):
                mentioned = [name.encode() in argument for name in self._packages]
            case Command():
                mentioned = []
        num_warm = max((number for number, is_mentioned in enumerate(mentioned, 1) if is_mentioned), default=0)
        return self._packages[:num_warm]

    async def _server(self, warm_packages: tuple[str, ...], *, network: bool) -> ForkServerClient:
        """Return the fork server with these packages; start it if there is none or it has died."""
        key = (warm_packages, network)
        async with self._starting:
            if self._closed:
                raise SandboxError("the sandbox is closed")
            server = self._servers.get(key)
            if server is not None and server.is_alive:
                return server
            if server is not None:
                log.warning("Sandbox process died; starting another", extra={"packages": warm_packages})
                server.close()
                await asyncio.to_thread(server.wait)
            server = ForkServerClient(self._settings, warm_packages, network=network)
            try:
                await server.start()
                await self._try_barriers(server)
            except BaseException:
                server.close()
                await asyncio.to_thread(server.wait)
                raise
            self._servers[key] = server
            return server


class ProcessSandbox(ForkSandbox):
    """Weaker sandbox for machines without Landlock, which does not restrict access to files."""

    confined = False

    async def _try_barriers(self, server: ForkServerClient) -> None:
        log.warning(
            "Sandbox is a plain process: code in it can read and write the server's files, signal its processes and "
            "reach its network. Use it only on your own machine, with code that you would run yourself."
        )


def require_room(folder: Path, num_bytes: int) -> None:
    """Raise SandboxError if a disk has less room than a task may use: a limit of the machine is no observation."""
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    # Some file systems tell no size.
    if disk.f_blocks and free < num_bytes:
        raise SandboxError(
            f"{folder} has {free // MIB} MiB free, and a task may write {num_bytes // MIB} MiB: free some space, "
            "or set TMPDIR to a folder on a larger disk"
        )


def check(task: SandboxTask) -> None:
    """Raise SandboxError if a task's paths or program are not valid."""
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
        case Function(target, persistent=True) if task != SandboxTask(task.program, limits=task.limits):
            raise SandboxError(f"function {target!r} is persistent: its task sets limits, and nothing else")
