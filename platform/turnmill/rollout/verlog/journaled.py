"""Turns in environments that are kept in the journal: another process replays them, and plays on."""

from collections import deque
from dataclasses import replace

from turnmill.core.errors import EpisodeError
from turnmill.core.trajectory import TrajectoryOutcome, Turn
from turnmill.environments.runtime.episode import ActionResult
from turnmill.rollout.episode_id import EpisodeId
from turnmill.rollout.journal import Journal
from turnmill.rollout.token_integrity import token_checksum
from turnmill.tasks import Task

PROMPT = "prompt_checksum"
"""Metric of a kept turn, in place of its prompt, which follows from the turns before it."""


class JournaledTurns:
    """The turns of one episode, or of one environment in one step, of which the journal may have the first."""

    def __init__(self, name: EpisodeId, journal: Journal) -> None:
        self.name, self.step, self.validate = str(name), name.step, name.validate
        self.task, self.trajectory_id = Task(name.task, ()), self.name
        self._journal = journal
        self._kept: deque[Turn] = deque()

    async def open(self) -> None:
        """Begin or resume them. Raises OvertakenError if a later attempt at the run has started."""
        self._kept.extend((await self._journal.open(self)).turns)

    def next_kept(self) -> Turn | None:
        """Return the next turn that the journal has, without its prompt; None if there is none left."""
        return self._kept.popleft() if self._kept else None

    async def append(self, turn: Turn) -> None:
        """Keep a turn that has been played. Raises OvertakenError if another process now plays them."""
        checksum = float(token_checksum(turn.prompt_ids))
        await self._journal.append(self, replace(turn, prompt_ids=(), metrics={**turn.metrics, PROMPT: checksum}))

    async def drop(self, error: EpisodeError | None = None) -> None:
        """Keep none of them any longer, nor those that follow: some are not learned from."""
        self._kept.clear()
        cause = None if error is None else error.cause
        await self._journal.finish(self, TrajectoryOutcome("failed", cause=cause))

    async def finish(self) -> None:
        """Keep them until their step has been trained."""
        await self._journal.finish(self, TrajectoryOutcome())


def follows(kept: Turn, prompt_ids: list[int]) -> bool:
    """Return whether a kept turn is an answer to a prompt."""
    return kept.metrics[PROMPT] == token_checksum(prompt_ids)


def is_result(kept: Turn, result: ActionResult) -> bool:
    """Return whether the environment has answered what it answered in a kept turn."""
    said = (result.observation, result.action, result.valid, result.reward, result.done)
    return said == (kept.observation, kept.action, kept.valid, kept.reward, kept.done)


def with_prompt(kept: Turn, prompt_ids: list[int]) -> Turn:
    """Return a kept turn as it was played."""
    metrics = {name: value for name, value in kept.metrics.items() if name != PROMPT}
    return replace(kept, prompt_ids=tuple(prompt_ids), metrics=metrics)
