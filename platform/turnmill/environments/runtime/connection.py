"""The connection to one environment process: requests, their answers, and what becomes of a process without one."""

import asyncio
import contextlib
import json
import logging
import signal
import socket
from collections.abc import Coroutine, Mapping
from typing import NoReturn, TypeVar

from pydantic import TypeAdapter, ValidationError

from turnmill.core.activity import is_stopped
from turnmill.core.errors import EnvironmentFailedError
from turnmill.core.loop_time import give_up
from turnmill.environments.runtime.fork_server import ForkServer
from turnmill.environments.runtime.worker import LENGTH, WorkerSettings, encode

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often a process that does not answer is looked at: a signal may have stopped it, or its fork server."""

AnswerT = TypeVar("AnswerT")


class EnvironmentLostError(EnvironmentFailedError):
    """The process of an environment was killed or stopped by a signal, or its fork server has died."""


class ProcessConnection:
    """Starts an environment process and asks it; every failure kills it and raises EnvironmentFailedError.

    EnvironmentLostError says that the process may not be to blame. Limits of time do not count what this process stands
    still for. Calls must not overlap.
    """

    def __init__(self, settings: WorkerSettings, fork_server: ForkServer, *, max_reply_bytes: int) -> None:
        self.name = f"The environment {settings.name}" + (f" ({settings.task})" if settings.task else "")
        self.pid: int | None = None
        """Process id; None while no process runs."""

        self._settings = settings
        self._fork_server = fork_server
        self._max_reply_bytes = max_reply_bytes
        self._key: int | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def is_open(self) -> bool:
        """True while a process is there that has not failed."""
        return self._writer is not None

    async def open(self, seconds: float) -> None:
        """Start a process and wait until its environment is ready."""
        self._key, end = self._fork_server.fork(self._settings)
        await self._within(seconds, self._connect(end), f"did not start within {seconds:g} s")

    async def ask(self, request: Mapping[str, object], seconds: float, answer: TypeAdapter[AnswerT]) -> AnswerT:
        """Send a request and return the answer to it."""
        late = f"did not answer {request['do']!r} within {seconds:g} s"
        message = await self._within(seconds, self._exchange(request), late)
        if "result" not in message:
            self.fail(_failure(message), lost=_is_killed(message))
        try:
            return answer.validate_python(message["result"])
        except ValidationError as error:
            self.fail(f"sent an invalid reply to {request['do']!r}: {error.errors()[0]['msg']}")

    def fail(self, reason: str, *, lost: bool = False) -> NoReturn:
        """Kill the process, and raise EnvironmentFailedError."""
        log.warning(
            "Environment failed",
            extra={"environment": self._settings.name, "what": reason, "environment_pid": self.pid},
        )
        self.discard()
        raise (EnvironmentLostError if lost else EnvironmentFailedError)(f"{self.name} {reason}.")

    def discard(self) -> None:
        """Kill the process, if there is one."""
        if self._key is not None:
            self._fork_server.kill(self._key)
        if self._writer is not None:
            self._writer.transport.abort()
        self._key = self._reader = self._writer = self.pid = None

    async def _within(self, seconds: float, work: Coroutine[None, None, AnswerT], late: str) -> AnswerT:
        task, left = asyncio.ensure_future(work), seconds
        try:
            while left > 0:
                done, _ = await asyncio.wait({task}, timeout=min(left, LOOK_SECONDS))
                if done:
                    return task.result()
                left -= LOOK_SECONDS
                self._fork_server.kill_if_stopped()
                if self.pid is not None and is_stopped(self.pid):
                    self.fail("was stopped by a signal", lost=True)
            self.fail(late)
        except BaseException:
            # Also when cancelled: a late reply would be taken for the reply to the next request.
            self.discard()
            raise
        finally:
            await give_up(task)

    async def _connect(self, end: socket.socket) -> None:
        self._reader, self._writer = await asyncio.open_unix_connection(sock=end)
        # The first is the fork server's, the second the process's own: either may come first.
        forked = ready = False
        while not (forked and ready):
            message = await self._receive()
            if isinstance(pid := message.get("forked"), int):
                self.pid, forked = pid, True
            elif message.get("ready") is True:
                ready = True
            else:
                self.fail(_failure(message), lost=_is_killed(message))

    async def _exchange(self, request: Mapping[str, object]) -> dict[str, object]:
        assert self._writer is not None
        self._writer.write(encode(request))
        # Where the fork server has died as well, reading tells it.
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()
        return await self._receive()

    async def _receive(self) -> dict[str, object]:
        assert self._reader is not None
        try:
            (size,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            if size > self._max_reply_bytes:
                self.fail(f"announced a reply of {size} bytes, more than the {self._max_reply_bytes} allowed")
            message = json.loads(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            self.fail("died without an error message", lost=True)
        except ValueError:
            self.fail("sent a reply that is not JSON")
        if not isinstance(message, dict):
            self.fail("sent a reply that is not a JSON object")
        return message


def _is_killed(message: Mapping[str, object]) -> bool:
    exit_code = message.get("exited")
    return isinstance(exit_code, int) and exit_code < 0


def _failure(message: Mapping[str, object]) -> str:
    if "error" in message:
        return f"raised {message['error']}".rstrip(".")
    exit_code = message.get("exited")
    if not isinstance(exit_code, int):
        return "sent a reply without a result"
    if exit_code >= 0:
        return f"exited with code {exit_code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-exit_code).name}"
    return f"was killed by signal {-exit_code}"
