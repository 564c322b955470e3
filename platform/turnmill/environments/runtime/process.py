"""Environments in processes of their own: one that hangs or sends invalid replies fails one episode only.

One that is killed or stopped from outside fails none: another process plays its turns again and goes on.
"""

import asyncio
import base64
import contextlib
import json
import logging
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

from turnmill.core.activity import is_stopped
from turnmill.core.errors import EnvironmentFailedError
from turnmill.core.loop_time import give_up
from turnmill.environments.rendering import from_png
from turnmill.environments.runtime.episode import ActionResult, ResetResult
from turnmill.environments.runtime.fork_server import ForkServer, shared_fork_server
from turnmill.environments.runtime.worker import LENGTH, WorkerSettings, encode

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""How often a process that does not answer is looked at: a signal may have stopped it."""

_CLOSE_SECONDS = 1.0

Reply = TypeVar("Reply")


class EnvironmentLostError(EnvironmentFailedError):
    """The process of an environment was killed or stopped by a signal, or its fork server has died."""


@dataclass(frozen=True, slots=True)
class RestoredEpisode:
    """An episode that was replayed up to the turn at which it was interrupted."""

    reset_result: ResetResult
    results: tuple[ActionResult, ...]


@dataclass(slots=True)
class _Episode:
    """What another process needs to go on with an episode."""

    seed: int
    next_seed: int | None
    opening: int
    """Hash of the first observation, and of the result of each response."""

    responses: list[str] = field(default_factory=list)
    results: list[int] = field(default_factory=list)


_RESET_RESULT = TypeAdapter(ResetResult)
_ACTION_RESULT = TypeAdapter(ActionResult)
_PICTURE = TypeAdapter(str)


class EnvironmentProcess:
    """Client of one environment process, which is replaced by a fresh one after a failure.

    Every failure kills the process and raises EnvironmentFailedError, which ends the episode; the next reset starts a
    fresh process. A process that a signal has killed or stopped may not be to blame: another one replays the episode
    and takes the request, once. Calls must not overlap.
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
        """Process id; None while no process runs."""

        self._fork_server = fork_server or shared_fork_server(settings.python)
        self._key: int | None = None
        self._episode: _Episode | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def reset(self, seed: int, *, next_seed: int | None = None) -> ResetResult:
        """Start the episode of a seed, in a fresh process if none runs.

        `next_seed` is the seed of the reset after this one, which is prepared while the episode goes on.
        """
        try:
            opening = await self._reset(seed, next_seed)
        except EnvironmentLostError:
            opening = await self._reset(seed, next_seed)
        self._episode = _Episode(seed, next_seed, hash(opening.observation))
        return opening

    async def act(self, response_text: str) -> ActionResult:
        """Execute the action in a response."""
        if (episode := self._episode) is None:
            raise EnvironmentFailedError(f"{self._name} has no episode: reset it first.")
        try:
            result = await self._act(response_text)
        except EnvironmentLostError:
            await self._replay(episode)
            result = await self._act(response_text)
        episode.responses.append(response_text)
        episode.results.append(_hash(result))
        return result

    async def restore(self, seed: int, responses: Sequence[str]) -> RestoredEpisode:
        """Replay an episode from its seed and its responses so far, to resume it after a crash of the trainer."""
        return RestoredEpisode(await self.reset(seed), tuple([await self.act(response) for response in responses]))

    async def check(self) -> None:
        """Start the process and end it. Raises EnvironmentFailedError if the environment cannot be created."""
        if self._writer is None:
            await self._start()
        await self.close()

    async def render(self) -> np.ndarray:
        """Draw the current state as an array of shape (height, width, 3), uint8."""
        if self._writer is None:
            raise EnvironmentFailedError(f"{self._name} has no episode: reset it first.")
        picture = await self._request({"do": "render"}, self.step_timeout_seconds, _PICTURE)
        return from_png(base64.b64decode(picture))

    async def render_frames(self, seed: int, responses: Sequence[str]) -> list[np.ndarray]:
        """Draw every turn of an episode by replaying it in a second process."""
        replay = EnvironmentProcess(
            self.settings,
            step_timeout_seconds=self.step_timeout_seconds,
            reset_timeout_seconds=self.reset_timeout_seconds,
            max_reply_bytes=self.max_reply_bytes,
            fork_server=self._fork_server,
        )
        try:
            await replay.reset(seed)
            frames = [await replay.render()]
            for response in responses:
                await replay.act(response)
                frames.append(await replay.render())
        finally:
            await replay.close()
        return frames

    async def close(self) -> None:
        """End the process."""
        if self._writer is not None:
            with contextlib.suppress(EnvironmentFailedError):
                await self._request({"do": "close"}, _CLOSE_SECONDS, TypeAdapter(None))
        self._discard()

    @property
    def _name(self) -> str:
        task = self.settings.task
        return f"The environment {self.settings.name}" + (f" ({task})" if task else "")

    async def _reset(self, seed: int, next_seed: int | None) -> ResetResult:
        if self._writer is None:
            await self._start()
        request = {"do": "reset", "seed": seed, "next_seed": next_seed}
        return await self._request(request, self.reset_timeout_seconds, _RESET_RESULT)

    async def _act(self, response_text: str) -> ActionResult:
        request = {"do": "act", "response": response_text}
        return await self._request(request, self.step_timeout_seconds, _ACTION_RESULT)

    async def _replay(self, episode: _Episode) -> None:
        """Play an episode's turns so far in a fresh process.

        Raises EnvironmentFailedError if they come out otherwise.
        """
        log.info("Environment replaced", extra={"environment": self.settings.name, "turns": len(episode.responses)})
        opening = await self._reset(episode.seed, episode.next_seed)
        equal = hash(opening.observation) == episode.opening
        for response, result in zip(episode.responses, episode.results, strict=True):
            equal = equal and _hash(await self._act(response)) == result
        if not equal:
            self._fail(
                "was replaced, and its turns came out otherwise when they were replayed: it is not deterministic"
            )
        self._episode = episode

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
        if not isinstance(pid := message.get("ready"), int):
            self._fail(_failure(message), lost=_is_killed(message))
        self.pid = pid

    async def _request(self, request: Mapping[str, object], timeout_seconds: float, reply: TypeAdapter[Reply]) -> Reply:
        try:
            message = await self._answer(request, timeout_seconds)
        except BaseException:
            # Also when cancelled: a late reply would be taken for the reply to the next request.
            self._discard()
            raise
        if "result" not in message:
            self._fail(_failure(message), lost=_is_killed(message))
        try:
            return reply.validate_python(message["result"])
        except ValidationError as error:
            self._fail(f"sent an invalid reply to {request['do']!r}: {error.errors()[0]['msg']}")

    async def _answer(self, request: Mapping[str, object], seconds: float) -> dict[str, object]:
        """Send a request and return the answer, for which it waits while this process itself does not stand still."""
        exchange, left = asyncio.ensure_future(self._exchange(request)), seconds
        try:
            while left > 0:
                done, _ = await asyncio.wait({exchange}, timeout=min(left, LOOK_SECONDS))
                if done:
                    return exchange.result()
                left -= LOOK_SECONDS
                if self.pid is not None and is_stopped(self.pid):
                    self._fail("was stopped by a signal", lost=True)
            self._fail(f"did not answer {request['do']!r} within {seconds:g} s")
        finally:
            await give_up(exchange)

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
            if size > self.max_reply_bytes:
                self._fail(f"announced a reply of {size} bytes, more than the {self.max_reply_bytes} allowed")
            message = json.loads(await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, ConnectionError):
            self._fail("died without an error message", lost=True)
        except ValueError:
            self._fail("sent a reply that is not JSON")
        if not isinstance(message, dict):
            self._fail("sent a reply that is not a JSON object")
        return message

    def _fail(self, reason: str, *, lost: bool = False) -> NoReturn:
        log.warning(
            "Environment failed", extra={"environment": self.settings.name, "what": reason, "environment_pid": self.pid}
        )
        self._discard()
        raise (EnvironmentLostError if lost else EnvironmentFailedError)(f"{self._name} {reason}.")

    def _discard(self) -> None:
        if self._key is not None:
            self._fork_server.kill(self._key)
        if self._writer is not None:
            self._writer.transport.abort()
        self._key = self._reader = self._writer = self.pid = self._episode = None


def _hash(result: ActionResult) -> int:
    return hash((result.observation, result.reward, result.terminated, result.truncated))


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
