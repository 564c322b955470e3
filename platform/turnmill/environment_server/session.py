"""Sessions: environments in processes of their own, one for each client."""

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from turnmill.core.errors import EnvironmentFailedError
from turnmill.core.seeds import VALIDATION_SEEDS
from turnmill.environment_server.messages import (
    MAX_SEED,
    EpisodeState,
    ProtocolError,
    ResetRequest,
    SessionEndError,
    TextAction,
    TextObservation,
    finite,
)
from turnmill.environments.parsing import MARKERS
from turnmill.environments.runtime.process import EnvironmentProcess

END_SECONDS = 1.0
"""Time in which sessions without an action in progress end."""


class Session:
    """One environment and its episode; calls must not overlap."""

    def __init__(self, process: EnvironmentProcess, actions: Sequence[str]) -> None:
        self.state = EpisodeState()
        self._process = process
        self._actions = list(actions)

    async def reset(self, request: ResetRequest) -> TextObservation:
        """Start an episode. Raises ProtocolError if the environment fails."""
        self.state = EpisodeState()
        seed = random.randint(VALIDATION_SEEDS, MAX_SEED) if request.seed is None else request.seed
        with _reported():
            result = await self._process.reset(seed)
        self.state = EpisodeState(episode_id=request.episode_id or uuid.uuid4().hex, seed=seed)
        return TextObservation(
            text=result.observation,
            instruction=result.instruction_prompt,
            actions=self._actions,
            metadata={"seed": seed},
        )

    async def step(self, action: TextAction) -> TextObservation:
        """Execute an action. Raises ProtocolError if there is no episode or the environment fails, which ends it."""
        state = self.state
        if not state.in_progress:
            raise ProtocolError("EXECUTION_ERROR", "The session has no episode in progress: reset it first.")
        self.state = EpisodeState()
        with _reported():
            result = await self._process.act(as_response(action.action))
        self.state = state.model_copy(update={"step_count": state.step_count + 1, "done": result.done})
        return TextObservation(
            done=result.done,
            reward=result.reward,
            text=result.observation,
            instruction=result.instruction_prompt,
            actions=self._actions,
            action=result.action,
            action_is_valid=result.valid,
            metadata={
                "seed": state.seed,
                "terminated": result.terminated,
                "truncated": result.truncated,
                "info": finite(result.info),
            },
        )

    async def close(self) -> None:
        """End the environment's process."""
        await self._process.close()


def as_response(action: str) -> str:
    """Return the response of an agent that means an action; text with the marker is one already."""
    # The second colon belongs to the marker, so that the action itself may begin with one.
    return action if MARKERS[0] in action else f"{MARKERS[0]}: {action}"


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except EnvironmentFailedError as error:
        raise ProtocolError("EXECUTION_ERROR", str(error)) from error


class Sessions:
    """The sessions of a server, and their limit."""

    def __init__(
        self, new_process: Callable[[], EnvironmentProcess], actions: Sequence[str], *, max_sessions: int
    ) -> None:
        self.draining = asyncio.Event()
        """Set when no episode may begin any more."""

        self.ended = asyncio.Event()
        """Set when episodes in progress end, too."""

        self._new_process = new_process
        self._actions = tuple(actions)
        self._max_sessions = max_sessions
        self.num_sessions = 0
        self._unused = asyncio.Event()
        self._unused.set()

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[Session]:
        """Open a session and close it at the end. Raises SessionEndError if there are too many, or at the end."""
        if self.draining.is_set():
            raise stopping()
        if self.num_sessions >= self._max_sessions:
            raise SessionEndError(
                "CAPACITY_REACHED",
                f"All {self._max_sessions} sessions of the server are in use: close one, or start the server with a "
                "larger --max-sessions.",
                active_sessions=self.num_sessions,
                max_sessions=self._max_sessions,
            )
        self.num_sessions += 1
        self._unused.clear()
        session = Session(self._new_process(), self._actions)
        try:
            yield session
        finally:
            # Before its process ends: a client that opens its next session at once must not be refused.
            self.num_sessions -= 1
            if not self.num_sessions:
                self._unused.set()
            await session.close()

    async def drain(self, seconds: float) -> None:
        """Let episodes in progress come to their end, for at most some seconds or until `ended` is set."""
        self.draining.set()
        waits = {asyncio.create_task(event.wait()) for event in (self._unused, self.ended)}
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        self.ended.set()
        # Those that wait for a message tell their clients; those with an action in progress are cancelled later.
        await asyncio.wait(waits, timeout=END_SECONDS)
        for wait in waits:
            wait.cancel()


def stopping() -> SessionEndError:
    """Return the error of sessions that end with the server."""
    return SessionEndError("SESSION_ERROR", "The server is stopping.")
