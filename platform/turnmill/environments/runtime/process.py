"""Environments in processes of their own: one that hangs or sends invalid replies fails one episode only.

One that is killed or stopped from outside fails none: another process plays its turns again and goes on.
"""

import base64
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
from pydantic import TypeAdapter

from turnmill.core.errors import EnvironmentFailedError
from turnmill.environments.rendering import from_png
from turnmill.environments.runtime.connection import EnvironmentLostError, ProcessConnection
from turnmill.environments.runtime.episode import ActionResult, ResetResult
from turnmill.environments.runtime.fork_server import ForkServer, shared_fork_server
from turnmill.environments.runtime.worker import WorkerSettings

log = logging.getLogger(__name__)

REPLACEMENTS = 3
"""Further processes that get a request: it may be what kills them."""

_CLOSE_SECONDS = 1.0


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


AnswerT = TypeVar("AnswerT")
Ask = Callable[[], Awaitable[AnswerT]]

_RESET_RESULT = TypeAdapter(ResetResult)
_ACTION_RESULT = TypeAdapter(ActionResult)
_PICTURE = TypeAdapter(str)


class EnvironmentProcess:
    """Client of one environment process, which is replaced by a fresh one after a failure.

    Every failure kills the process and raises EnvironmentFailedError, which ends the episode; the next reset starts a
    fresh process. A process that a signal has killed or stopped may not be to blame: another one replays the episode
    and takes the request, `REPLACEMENTS` times at most. Calls must not overlap.
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
        self._fork_server = fork_server or shared_fork_server(settings.python)
        self._connection = ProcessConnection(settings, self._fork_server, max_reply_bytes=max_reply_bytes)
        self._episode: _Episode | None = None

    @property
    def pid(self) -> int | None:
        """Process id; None while no process runs."""
        return self._connection.pid

    async def reset(self, seed: int, *, next_seed: int | None = None) -> ResetResult:
        """Start the episode of a seed, in a fresh process if none runs.

        `next_seed` is the seed of the reset after this one, which is prepared while the episode goes on.
        """
        reset = partial(self._reset, seed, next_seed)
        opening = await _despite_losses(reset, reset)
        self._episode = _Episode(seed, next_seed, hash(opening.observation))
        return opening

    async def act(self, response_text: str) -> ActionResult:
        """Execute the action in a response."""
        episode = self._episode
        if episode is None or not self._connection.is_open:
            raise self._without_episode()

        async def act_in_another() -> ActionResult:
            await self._replay(episode)
            return await self._act(response_text)

        result = await _despite_losses(partial(self._act, response_text), act_in_another)
        episode.responses.append(response_text)
        episode.results.append(_hash(result))
        return result

    async def restore(self, seed: int, responses: Sequence[str]) -> RestoredEpisode:
        """Replay an episode from its seed and its responses so far, to resume it after a crash of the trainer."""
        return RestoredEpisode(await self.reset(seed), tuple([await self.act(response) for response in responses]))

    async def check(self) -> None:
        """Start the process and end it. Raises EnvironmentFailedError if the environment cannot be created."""
        await self._start()
        await self.close()

    async def render(self) -> np.ndarray:
        """Draw the current state as an array of shape (height, width, 3), uint8."""
        if not self._connection.is_open:
            raise self._without_episode()
        picture = await self._connection.ask({"do": "render"}, self.step_timeout_seconds, _PICTURE)
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
        if self._connection.is_open:
            with contextlib.suppress(EnvironmentFailedError):
                await self._connection.ask({"do": "close"}, _CLOSE_SECONDS, TypeAdapter(None))
        self._connection.discard()

    async def _start(self) -> None:
        if not self._connection.is_open:
            await self._connection.open(self.reset_timeout_seconds)

    async def _reset(self, seed: int, next_seed: int | None) -> ResetResult:
        await self._start()
        request = {"do": "reset", "seed": seed, "next_seed": next_seed}
        return await self._connection.ask(request, self.reset_timeout_seconds, _RESET_RESULT)

    async def _act(self, response_text: str) -> ActionResult:
        request = {"do": "act", "response": response_text}
        return await self._connection.ask(request, self.step_timeout_seconds, _ACTION_RESULT)

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
            self._connection.fail("was replaced, and its turns came out otherwise when replayed: make it deterministic")

    def _without_episode(self) -> EnvironmentFailedError:
        return EnvironmentFailedError(f"{self._connection.name} has no episode: reset it first.")


async def _despite_losses(ask: Ask[AnswerT], ask_another: Ask[AnswerT]) -> AnswerT:
    """Return the answer of a process, or if it is lost, of another one."""
    for _ in range(REPLACEMENTS):
        try:
            return await ask()
        except EnvironmentLostError:
            ask = ask_another
    return await ask()


def _hash(result: ActionResult) -> int:
    return hash((result.observation, result.reward, result.terminated, result.truncated))
