"""A function whose module is imported once, and called in a fork for each trajectory."""

import asyncio
import json
import socket
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO

from turnmill.core import forking
from turnmill.core.errors import HarnessError
from turnmill.rollout.harness.entry_point import MAX_REQUEST_BYTES, PRELOAD
from turnmill.rollout.harness.program import (
    INHERITED,
    Ended,
    Running,
    Streams,
    end_of,
    entry_point_command,
    folders_of,
    import_paths,
    inherited,
    kill_group,
    last_words,
    run_started,
)

LOAD_SECONDS = 120.0
FORK_SECONDS = 60.0
FULL_SECONDS = 0.02
"""Time between attempts to send a request, while as many wait as the socket holds."""

KILLED = -9
"""Exit code of forks whose parent has died, with which they end."""


class PreloadedFunction:
    """The function of a job's `entryPoint`, whose process starts with the first trajectory and again if it dies."""

    def __init__(self, target: str, python: str | None, variables: Mapping[str, str]) -> None:
        self._target, self._python, self._variables = target, python, variables
        self._parent: _Parent | None = None
        self._starting = asyncio.Lock()

    async def run(
        self,
        *,
        task: Mapping[str, object],
        variables: Mapping[str, str],
        workspace: Path,
        timeout_seconds: float,
        stop: asyncio.Event,
    ) -> Ended:
        """Call the function until it returns, its time is over, or `stop` is set.

        Raises HarnessError if its module cannot be imported, or the process that has imported it dies.
        """
        parent = await self._started()

        async def start(streams: Streams) -> Running:
            return await parent.fork(streams, workspace, folders_of(workspace) | dict(variables))

        ended = await run_started(start, task=task, timeout_seconds=timeout_seconds, stop=stop)
        if parent.has_ended and ended.how == "exited" and ended.exit_code == KILLED:
            raise HarnessError(f"spec.agent.preload: the process that has imported {self._target} died.")
        return ended

    async def close(self) -> None:
        """End the process, and all that it has forked."""
        if self._parent is not None:
            await self._parent.close()

    async def _started(self) -> "_Parent":
        async with self._starting:
            if self._parent is not None and self._parent.has_ended:
                await self._parent.close()
                self._parent = None
            if self._parent is None:
                self._parent = await _Parent.start(self._target, self._python, self._variables)
            return self._parent


@dataclass(slots=True)
class _Fork:
    """One call."""

    parent: "_Parent"
    number: int
    pid: "asyncio.Future[int]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    exit_code: "asyncio.Future[int]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    async def wait(self) -> int:
        """Return its exit code, once it has ended."""
        # Of several that wait, one that is cancelled must not end the wait of the others.
        return await asyncio.shield(self.exit_code)

    def kill(self) -> None:
        """Kill it and its group, unless its parent has done so, as it does when a fork has ended."""
        if not self.exit_code.done():
            self.parent.kill(self.number)


class _Parent:
    """The process that has imported the module."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket, resources: ExitStack) -> None:
        self._process, self._control, self._resources = process, control, resources
        self._forks: dict[int, _Fork] = {}
        self._num_forks = 0
        self.ready = asyncio.get_running_loop().create_future()
        self.has_ended = False
        asyncio.get_running_loop().add_reader(control, self._read)

    @classmethod
    async def start(cls, target: str, python: str | None, variables: Mapping[str, str]) -> "_Parent":
        """Start a process and wait until it has imported the module. Raises HarnessError if it does not."""
        with ExitStack() as resources:
            # Some packages write to the home folder when they are imported.
            folder = resources.enter_context(TemporaryDirectory(prefix="turnmill-harness-", ignore_cleanup_errors=True))
            errors = resources.enter_context(TemporaryFile())
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            resources.enter_context(ours)
            ours.setblocking(False)
            with theirs:
                process = await cls._create(target, python, variables, Path(folder), theirs, errors)
            parent = cls(process, ours, resources.pop_all())
        try:
            await asyncio.wait_for(asyncio.shield(parent.ready), LOAD_SECONDS)
        except BaseException as error:
            late = isinstance(error, TimeoutError)
            reason = f"it is not within {LOAD_SECONDS:g} s" if late else last_words(end_of(errors))
            exit_code = await parent.close()
            if isinstance(error, OSError):
                reason = reason or f"exit code {exit_code}"
                raise HarnessError(f"spec.agent.entryPoint: {target} cannot be imported: {reason}") from error
            raise
        return parent

    @staticmethod
    async def _create(
        target: str, python: str | None, variables: Mapping[str, str], folder: Path, control: socket.socket,
        errors: IO[bytes],
    ) -> asyncio.subprocess.Process:  # fmt: skip
        command = [*entry_point_command(target, python), PRELOAD, str(control.fileno())]
        try:
            return await asyncio.create_subprocess_exec(
                *command,
                cwd=folder,
                env=inherited(INHERITED) | folders_of(folder) | import_paths(python) | dict(variables),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                pass_fds=(control.fileno(),),
                preexec_fn=forking.die_with_parent,
            )
        except (OSError, ValueError) as error:
            raise HarnessError(
                f"spec.agent.python: {command[0]!r} cannot be started: {error}. Give its whole path."
            ) from error

    async def fork(self, streams: Streams, workspace: Path, variables: Mapping[str, str]) -> _Fork:
        """Call the function in a fork. Raises HarnessError if the process has died, or does not fork."""
        self._num_forks += 1
        fork = self._forks[self._num_forks] = _Fork(self, self._num_forks)
        request = {"number": fork.number, "folder": str(workspace), "variables": dict(variables)}
        descriptors = [stream.fileno() for stream in (streams.given, streams.output, streams.errors)]
        try:
            async with asyncio.timeout(FORK_SECONDS):
                await self._send(request, descriptors)
                await asyncio.shield(fork.pid)
        except BaseException as error:
            self._forks.pop(fork.number, None)
            self.kill(fork.number)
            if isinstance(error, OSError):
                raise HarnessError(f"spec.agent.preload: no fork of the imported module: {error!r}") from error
            raise
        return fork

    def kill(self, number: int) -> None:
        """Kill a fork and its group; without effect if it has ended."""
        try:
            self._control.send(json.dumps({"kill": number}).encode())
        except BlockingIOError:
            if (fork := self._forks.get(number)) is not None and fork.pid.done():
                kill_group(fork.pid.result())
        except OSError:
            # The process has died, and its forks with it.
            pass

    async def close(self) -> int:
        """End the process, and all that it has forked; return its exit code."""
        self._end()
        if self._process.returncode is None:
            # Its forks end with it.
            kill_group(self._process.pid)
        exit_code = await self._process.wait()
        self._resources.close()
        return exit_code

    async def _send(self, request: Mapping[str, object], descriptors: list[int]) -> None:
        while not self.has_ended:
            with suppress(BlockingIOError):
                socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
                return
            await asyncio.sleep(FULL_SECONDS)
        raise ConnectionError("its process has ended")

    def _read(self) -> None:
        try:
            while raw := self._control.recv(MAX_REQUEST_BYTES):
                self._take(json.loads(raw))
        except BlockingIOError:
            return
        except OSError:
            pass
        self._end()

    def _take(self, reply: Mapping[str, int]) -> None:
        if "ready" in reply:
            self.ready.set_result(None)
            return
        fork = self._forks.get(reply["number"])
        if fork is None:
            # Given up, and killed.
            return
        if "pid" in reply:
            fork.pid.set_result(reply["pid"])
        else:
            del self._forks[fork.number]
            fork.exit_code.set_result(reply["exitCode"])

    def _end(self) -> None:
        """Notice that the process has ended: its forks end with it, but not what these have started."""
        if self.has_ended:
            return
        self.has_ended = True
        asyncio.get_running_loop().remove_reader(self._control)
        for fork in self._forks.values():
            if not fork.pid.done():
                fork.pid.set_exception(ConnectionError("its process has ended"))
                continue
            kill_group(fork.pid.result())
            if not fork.exit_code.done():
                fork.exit_code.set_result(KILLED)
        self._forks.clear()
        if not self.ready.done():
            self.ready.set_exception(ConnectionError("its process has ended"))
