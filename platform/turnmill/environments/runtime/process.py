"""Environments in processes of their own: what dies, hangs or talks nonsense costs one episode and no more."""

import asyncio
import base64
import contextlib
import json
import logging
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

from turnmill.core.errors import EnvironmentFailedError
from turnmill.environments.rendering import from_png
from turnmill.environments.runtime.episode import ActionResult, Opening
from turnmill.environments.runtime.fork_server import ForkServer, shared_fork_server
from turnmill.environments.runtime.worker import LENGTH, WorkerSettings, encode

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 1.0

Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True)
class Restored:
    """An episode that was played again up to where it stood."""

    opening: Opening
    results: tuple[ActionResult, ...]


_OPENING = TypeAdapter(Opening)
_ACTION_RESULT = TypeAdapter(ActionResult)
_PICTURE = TypeAdapter(str)


class EnvironmentProcess:
    """The place of one environment: a process behind it, and another one after that failed.

    Whatever goes wrong kills the process and raises EnvironmentFailedError, which ends the episode;
    the reset that begins the next one starts a fresh process. One call at a time.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        step_timeout_seconds: float = 30.0,
        reset_timeout_seconds: float = 60.0,
        max_reply_bytes: int = 16 * 2**20,
        fork_server: ForkServer | None = None,
    ) -> None:
        self.settings = settings
        self.step_timeout_seconds = step_timeout_seconds
        self.reset_timeout_seconds = reset_timeout_seconds
        self.max_reply_bytes = max_reply_bytes
        self.pid: int | None = None
        """Of the process that runs; None where none does."""

        self._fork_server = fork_server or shared_fork_server(settings.python)
        self._key: int | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def reset(self, seed: int, *, next_seed: int | None = None) -> Opening:
        """Begin the episode that `seed` stands for, in a fresh process if there is none.

        `next_seed` is the one of the reset after this, which is prepared while the episode goes on.
        """
        if self._writer is None:
            await self._start()
        request = {"do": "reset", "seed": seed, "next_seed": next_seed}
        return await self._ask(request, self.reset_timeout_seconds, _OPENING)

    async def act(self, response_text: str) -> ActionResult:
        """Execute the action in a response."""
        if self._writer is None:
            raise EnvironmentFailedError(f"{self._name} has no episode: reset it first.")
        request = {"do": "act", "response": response_text}
        return await self._ask(request, self.step_timeout_seconds, _ACTION_RESULT)

    async def restore(self, seed: int, responses: Sequence[str]) -> Restored:
        """Begin an episode and give the responses it has had, to carry on after a crash of the trainer."""
        return Restored(await self.reset(seed), tuple([await self.act(response) for response in responses]))

    async def check(self) -> None:
        """Start the process and end it. Raises EnvironmentFailedError for an environment that cannot be made."""
        if self._writer is None:
            await self._start()
        await self.close()

    async def render(self) -> np.ndarray:
        """Draw the present situation, shape (height, width, 3), 8 bits a channel."""
        if self._writer is None:
            raise EnvironmentFailedError(f"{self._name} has no episode: reset it first.")
        picture = await self._ask({"do": "render"}, self.step_timeout_seconds, _PICTURE)
        return from_png(base64.b64decode(picture))

    async def render_frames(self, seed: int, responses: Sequence[str]) -> list[np.ndarray]:
        """Draw an episode from its first observation to its last, in a process beside the one in progress."""
        drawn = EnvironmentProcess(
            self.settings,
            step_timeout_seconds=self.step_timeout_seconds,
            reset_timeout_seconds=self.reset_timeout_seconds,
            max_reply_bytes=self.max_reply_bytes,
            fork_server=self._fork_server,
        )
        try:
            await drawn.reset(seed)
            frames = [await drawn.render()]
            for response in responses:
                await drawn.act(response)
                frames.append(await drawn.render())
        finally:
            await drawn.close()
        return frames

    async def close(self) -> None:
        """End the process."""
        if self._writer is not None:
            with contextlib.suppress(EnvironmentFailedError):
                await self._ask({"do": "close"}, _CLOSE_SECONDS, TypeAdapter(None))
        self._discard()

    @property
    def _name(self) -> str:
        task = self.settings.task
        return f"The environment {self.settings.name}" + (f" ({task})" if task else "")

    async def _start(self) -> None:
        self._key, connection = self._fork_server.fork(self.settings)
        try:
            async with asyncio.timeout(self.reset_timeout_seconds):
                self._reader, self._writer = await asyncio.open_unix_connection(sock=connection)
                message = await self._receive()
        except TimeoutError:
            self._fail(f"did not start within {self.reset_timeout_seconds:g} s")
        except BaseException:
            self._discard()
            raise
        if "ready" not in message:
            self._fail(_what_happened(message))
        self.pid = int(message["ready"])

    async def _ask(self, request: dict[str, Any], timeout_seconds: float, reply: TypeAdapter[Reply]) -> Reply:
        assert self._writer is not None
        try:
            async with asyncio.timeout(timeout_seconds):
                self._writer.write(encode(request))
                # A death closes the connection before its notice is read: the notice tells more.
                with contextlib.suppress(ConnectionError):
                    await self._writer.drain()
                message = await self._receive()
        except TimeoutError:
            self._fail(f"did not answer {request['do']!r} within {timeout_seconds:g} s")
        except BaseException:
            # Also when cancelled: an answer nobody waited for would be taken for the next one.
            self._discard()
            raise
        if "result" not in message:
            self._fail(_what_happened(message))
        try:
            return reply.validate_python(message["result"])
        except ValidationError as error:
            self._fail(f"answered {request['do']!r} with nonsense: {error.errors()[0]['msg']}")

    async def _receive(self) -> dict[str, Any]:
        assert self._reader is not None
        try:
            (size,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            if size > self.max_reply_bytes:
                self._fail(f"announced a reply of {size} bytes, more than the {self.max_reply_bytes} allowed")
            message = json.loads(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            self._fail("died without a word")
        except ValueError:
            self._fail("sent a reply that is not JSON")
        if not isinstance(message, dict):
            self._fail("sent a reply that is not an object")
        return message

    def _fail(self, what: str) -> NoReturn:
        log.warning(
            "Environment failed", extra={"environment": self.settings.name, "what": what, "environment_pid": self.pid}
        )
        self._discard()
        raise EnvironmentFailedError(f"{self._name} {what}.")

    def _discard(self) -> None:
        if self._key is not None:
            self._fork_server.kill(self._key)
        if self._writer is not None:
            self._writer.transport.abort()
        self._key = self._reader = self._writer = self.pid = None


def _what_happened(message: dict[str, Any]) -> str:
    if "error" in message:
        return f"raised {message['error']}".rstrip(".")
    exit_code = message.get("exited")
    if not isinstance(exit_code, int):
        return "sent a reply that means nothing"
    if exit_code >= 0:
        return f"ended by itself with exit code {exit_code}"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-exit_code).name}"
    return f"was killed by signal {-exit_code}"
