"""A slot: one environment process after another, episode after episode, carried on from step to step."""

import asyncio
import hashlib
import logging
from dataclasses import dataclass

import numpy as np

from turnmill.core.errors import EnvironmentFailedError
from turnmill.core.seeds import VALIDATION_SEEDS
from turnmill.core.trajectory import StopReason, Turn
from turnmill.environments.runtime.episode import ActionResult, ResetResult
from turnmill.environments.runtime.process import EnvironmentProcess
from turnmill.environments.runtime.worker import WorkerSettings
from turnmill.jobs.job import JobSpec
from turnmill.rollout.timing import Timing
from turnmill.rollout.verlog.memory import Memory
from turnmill.rollout.verlog.prompts import build_messages, requires_marker

log = logging.getLogger(__name__)

MAX_SEED = 2**31 - 1


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """Which episodes a slot plays: every seed follows from the run's, the slot and the episode's number."""

    stream: str
    run_seed: int
    slot: int
    task: int | None = None
    """Whose episodes all begin alike; None where each episode has a seed of its own."""

    title: str = ""
    """What its one episode is called."""

    @classmethod
    def training(cls, run_seed: int, slot: int) -> "EpisodePlan":
        """Episodes from seeds that no validation plays."""
        return cls("training", run_seed, slot)

    @classmethod
    def validation(cls, run_seed: int, slot: int) -> "EpisodePlan":
        """One episode per slot, the same in every validation with the same seed."""
        return cls("validation", run_seed, slot)

    @classmethod
    def of_task(cls, run_seed: int, task: int, *, step: int, slot: int, title: str) -> "EpisodePlan":
        """One episode of a task, which begins as all others of the task do and is sampled in its own way."""
        return cls(f"step {step}", run_seed, slot, task, title)

    def seed(self, episode: int) -> int:
        """The environment's seed of an episode."""
        if self.stream == "validation":
            return (self.run_seed * 10_007 + self.slot) % VALIDATION_SEEDS
        which = f"{self.slot}/{episode}" if self.task is None else f"task/{self.task}"
        digest = hashlib.blake2b(f"{self.run_seed}/{which}".encode(), digest_size=4).digest()
        return VALIDATION_SEEDS + int.from_bytes(digest, "big") % (MAX_SEED - VALIDATION_SEEDS)

    def next_seed(self, episode: int) -> int | None:
        """The seed of the episode after this one; None where there is none."""
        return self.seed(episode + 1) if self.stream == "training" else None


@dataclass(frozen=True, slots=True)
class SlotState:
    """What it takes to carry a slot on in another process: environments repeat themselves under the same seed."""

    index: int
    episode: int
    turns_played: int
    responses: tuple[str, ...]
    """Of the episode in progress."""


def episode_name(stream: str, slot: int, episode: int) -> str:
    """What an episode is called; a run has no other of that name."""
    return f"{stream[0]}{slot}-{episode}"


class Slot:
    """One environment at a time, with the agent's memory of its episode."""

    def __init__(self, index: int, spec: JobSpec, plan: EpisodePlan) -> None:
        self.index = index
        self.spec = spec
        self.plan = plan
        # Segments of one slot follow each other, even where several steps are in flight.
        self.lock = asyncio.Lock()
        self.episode = 0
        self.turns_played = 0
        """Over all episodes; gives every turn its own sampling seed."""

        self.reward = 0.0
        self._responses: list[str] = []
        self._starts: dict[int, SlotState] = {}
        self._in_episode = False
        self._over = False
        self._just_acted = self._truncated = False
        self._instructions = self._compact = ""
        self.state_key = ""
        """What the next turn begins with, for algorithms that compare turns of the same state."""

        memory = spec.verlog.memory
        self._memory = Memory(text_turns=memory.text_turns, thought_turns=memory.thought_turns)
        environment = spec.environment
        self.timing = Timing()
        """Of the segment in progress."""

        self._process = EnvironmentProcess(
            WorkerSettings(
                name=environment.name,
                task=environment.task,
                max_turns=spec.verlog.max_turns,
                options=environment.options,
                python=environment.python,
                memory_limit_bytes=environment.memory_mib * 2**20,
                invalid_penalty=environment.invalid_penalty,
                binary_reward=environment.binary_reward,
                marker_required=requires_marker(spec.verlog.prompt),
            ),
            step_timeout_seconds=environment.step_timeout_seconds,
            reset_timeout_seconds=environment.reset_timeout_seconds,
        )

    @property
    def turn(self) -> int:
        """The number of the turn to play, or just played, in its episode; from 0."""
        return len(self._responses) - self._just_acted

    @property
    def episode_name(self) -> str:
        """A name no other episode of the run has."""
        return self.plan.title or episode_name(self.plan.stream, self.index, self.episode)

    @property
    def seed(self) -> int:
        """The environment's seed of the episode."""
        return self.plan.seed(self.episode)

    async def ready(self) -> None:
        """See to it that an episode is in progress. Raises EnvironmentFailedError."""
        if not self._in_episode:
            opening = await self._process.reset(
                self.plan.seed(self.episode), next_seed=self.plan.next_seed(self.episode)
            )
            self._begin(opening)

    def messages(self) -> list[dict[str, str]]:
        """What the policy is shown: the instructions, the window of memory, the observation."""
        return build_messages(
            self._memory,
            template=self.spec.verlog.prompt,
            instruction_prompt=self._instructions,
            compact_prompt=self._compact,
        )

    async def act(self, response: str) -> ActionResult:
        """Do what a response says. Raises EnvironmentFailedError."""
        result = await self._process.act(response)
        self._take_in(response, result)
        self._just_acted = True
        return result

    def finish_turn(self, *, keep: bool = False) -> None:
        """The turn is recorded: go on to the next one, in the next episode where this one is over.

        `keep` holds on to an episode that is over, for whoever still asks about it.
        """
        self._just_acted = False
        self.turns_played += 1
        if self._over and not keep:
            self._next_episode()

    async def abandon(self, *, again: bool = False) -> None:
        """Drop the episode in progress; `again` plays the same one once more instead of the next."""
        self._just_acted = False
        self._next_episode()
        if again:
            self.episode -= 1
        await self._process.close()

    async def frames(self) -> list[np.ndarray]:
        """Pictures of the episode so far, one per turn and the first. Raises EnvironmentFailedError."""
        return await self._process.render_frames(self.plan.seed(self.episode), list(self._responses))

    async def close(self) -> None:
        """End the environment process."""
        await self._process.close()

    def stop_reason(self, turn: Turn) -> StopReason | None:
        """Why the episode ended with this turn; None while it goes on."""
        if not turn.done:
            return None
        return "max_turns" if self._truncated else "completed"

    def begin_segment(self, step: int) -> None:
        """The turns from here on are for a step; where it began is kept until no checkpoint can ask for it."""
        self._starts[step] = self._state()
        for old in sorted(self._starts)[: -(self.spec.training.max_staleness + 1)]:
            del self._starts[old]

    def snapshot(self, after: int) -> SlotState:
        """The state after all turns of a step, and before those of later ones."""
        later = [step for step in self._starts if step > after]
        return self._starts[min(later)] if later else self._state()

    def _state(self) -> SlotState:
        """The state between two turns."""
        return SlotState(self.index, self.episode, self.turns_played, tuple(self._responses))

    async def restore(self, state: SlotState) -> None:
        """Carry on from a snapshot: the episode in progress is played again up to its last response.

        One that cannot be is dropped, and the next begins.
        """
        self.episode, self.turns_played = state.episode, state.turns_played
        if not state.responses:
            return
        try:
            restored = await self._process.restore(self.plan.seed(self.episode), list(state.responses))
        except EnvironmentFailedError as error:
            log.warning("Episode not carried on", extra={"slot": self.index, "what": str(error)})
            self._next_episode()
            return
        self._begin(restored.reset_result)
        for response, result in zip(state.responses, restored.results, strict=True):
            self._take_in(response, result)

    def _begin(self, opening: ResetResult) -> None:
        self._memory.begin(opening.observation)
        self._instructions, self._compact = opening.instruction_prompt, opening.compact_prompt
        self.state_key = opening.state_key
        self._in_episode, self._over, self._truncated = True, False, False

    def _take_in(self, response: str, result: ActionResult) -> None:
        self._memory.remember(response=response, action=result.action, observation=result.observation)
        self._responses.append(response)
        self._instructions, self._compact = result.instruction_prompt, result.compact_prompt
        self.state_key = result.state_key
        self.reward += result.reward
        self._over, self._truncated = result.done, result.truncated

    def _next_episode(self) -> None:
        self.episode += 1
        self.reward = 0.0
        self._responses.clear()
        self._in_episode = self._over = False
