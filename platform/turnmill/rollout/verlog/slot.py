"""Environment slots: one environment process each, whose episodes continue from step to step."""

import asyncio
import hashlib
import logging
from dataclasses import dataclass

import numpy as np

from turnmill.core.errors import EnvironmentFailedError
from turnmill.core.seeds import VALIDATION_SEEDS
from turnmill.core.trajectory import StopReason, Turn
from turnmill.environments.registry import allowed_actions
from turnmill.environments.runtime.episode import ActionResult, ResetResult, is_success
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
    """Episodes of a slot, whose seeds are derived from the run's seed, the slot and the number of the episode."""

    stream: str
    run_seed: int
    slot: int
    task: int | None = None
    """Task whose episodes all have the same seed; None if each episode has a seed of its own."""

    episode_name: str = ""
    """Name of the only episode; empty if there are several."""

    step: int = 0
    """Step of a validation, whose episodes have the same names in every step."""

    sample: int = 0
    """Number of the episode among those of a validation with the same environment seed."""

    @classmethod
    def training(cls, run_seed: int, slot: int) -> "EpisodePlan":
        """Return the plan of training episodes, with seeds that no validation uses."""
        return cls("training", run_seed, slot)

    @classmethod
    def validation(cls, run_seed: int, slot: int, step: int = 0, sample: int = 0) -> "EpisodePlan":
        """Return the plan of one episode, the same in every validation with the same seed."""
        return cls("validation", run_seed, slot, episode_name=f"v{slot}-{sample}", step=step, sample=sample)

    @classmethod
    def of_task(cls, run_seed: int, task: int, *, step: int, slot: int, episode_name: str) -> "EpisodePlan":
        """Return the plan of one episode with the environment seed of its task, and sampling seeds of its own."""
        return cls(f"step {step}", run_seed, slot, task, episode_name)

    @property
    def sampling_stream(self) -> str:
        """Name from which sampling seeds are derived; it differs between samples of an episode."""
        return f"{self.stream}/{self.sample}" if self.sample else self.stream

    def seed(self, episode: int) -> int:
        """Return the environment's seed of an episode."""
        if self.stream == "validation":
            return (self.run_seed * 10_007 + self.slot) % VALIDATION_SEEDS
        key = f"{self.slot}/{episode}" if self.task is None else f"task/{self.task}"
        digest = hashlib.blake2b(f"{self.run_seed}/{key}".encode(), digest_size=4).digest()
        return VALIDATION_SEEDS + int.from_bytes(digest, "big") % (MAX_SEED - VALIDATION_SEEDS)

    def next_seed(self, episode: int) -> int | None:
        """Return the seed of the next episode; None if there is none."""
        return self.seed(episode + 1) if self.stream == "training" else None


@dataclass(frozen=True, slots=True)
class SlotState:
    """State from which a slot is restored in another process, as environments are deterministic."""

    index: int
    episode: int
    turns_played: int
    responses: tuple[str, ...]
    """Responses in the current episode."""


def episode_name(stream: str, slot: int, episode: int) -> str:
    """Return the name of an episode, unique within a run."""
    return f"{stream[0]}{slot}-{episode}"


class Slot:
    """An environment process, with the agent's memory of the episode in progress."""

    def __init__(self, index: int, spec: JobSpec, plan: EpisodePlan) -> None:
        self.index = index
        self.spec = spec
        self.plan = plan
        # Segments of one slot follow each other, even where several steps are in flight.
        self.lock = asyncio.Lock()
        self.episode = 0
        self.turns_played = 0
        """Number of turns in all episodes, from which the sampling seed of each turn is derived."""

        self._rewards: list[float] = []
        self._is_solved = False
        """True if the environment says that its task is solved."""

        self._responses: list[str] = []
        self.segment_ends: dict[int, SlotState] = {}
        """State after all turns of a step, by the step, until it is reported."""

        self._in_episode = False
        self._done = False
        self._turn_in_progress = self._truncated = False
        self._instruction_prompt = self._compact_prompt = ""
        self._actions = allowed_actions(spec.environment.name) if spec.verlog.prompt == "cot_actions" else ()
        self.state_key = ""
        """State before the next turn, for algorithms that compare turns by state."""

        memory = spec.verlog.memory
        self._memory = Memory(text_turns=memory.text_turns, thought_turns=memory.thought_turns)
        environment = spec.environment
        self.timing = Timing()
        """Times of the current segment."""

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
        """Number in its episode of the turn to play or just played, from 0."""
        return len(self._responses) - self._turn_in_progress

    @property
    def reward(self) -> float:
        """Sum of the rewards of the episode so far."""
        return sum(self._rewards)

    @property
    def success(self) -> bool:
        """True if the episode is over, as a success by the job's rule."""
        return self._done and is_success(self.spec.environment.success, self._rewards, is_solved=self._is_solved)

    @property
    def episode_name(self) -> str:
        """Name of the episode, unique within the run."""
        return self.plan.episode_name or episode_name(self.plan.stream, self.index, self.episode)

    @property
    def trajectory(self) -> str:
        """Name of the episode for the engines, which differs between validations."""
        return f"{self.episode_name}@{self.plan.step}" if self.plan.stream == "validation" else self.episode_name

    @property
    def seed(self) -> int:
        """Seed of the environment in this episode."""
        return self.plan.seed(self.episode)

    async def ensure_episode(self) -> None:
        """Begin the next episode if none is in progress. Raises EnvironmentFailedError."""
        if not self._in_episode:
            opening = await self._process.reset(
                self.plan.seed(self.episode), next_seed=self.plan.next_seed(self.episode)
            )
            self._begin(opening)

    def messages(self) -> list[dict[str, str]]:
        """Return the prompt: the instructions, the turns in memory and the observation."""
        return build_messages(
            self._memory,
            template=self.spec.verlog.prompt,
            instruction_prompt=self._instruction_prompt,
            compact_prompt=self._compact_prompt,
            actions=self._actions,
        )

    async def act(self, response: str) -> ActionResult:
        """Execute the action of a response. Raises EnvironmentFailedError."""
        result = await self._process.act(response)
        self._apply(response, result)
        self._turn_in_progress = True
        return result

    def finish_turn(self, *, keep_episode: bool = False) -> None:
        """Continue with the next turn, or the next episode if this one is over.

        With `keep_episode`, a finished episode stays readable.
        """
        self._turn_in_progress = False
        self.turns_played += 1
        if self._done and not keep_episode:
            self._next_episode()

    async def drop_episode(self, *, repeat: bool = False) -> None:
        """End the current episode and its process; with `repeat`, the same episode is played next."""
        self._turn_in_progress = False
        self._next_episode()
        if repeat:
            self.episode -= 1
        await self._process.close()

    async def frames(self) -> list[np.ndarray]:
        """Return images of the episode: before the first turn, and after each. Raises EnvironmentFailedError."""
        return await self._process.render_frames(self.plan.seed(self.episode), list(self._responses))

    async def close(self) -> None:
        """End the environment process."""
        await self._process.close()

    def stop_reason(self, turn: Turn) -> StopReason | None:
        """Return the stop reason of the episode; None while it goes on."""
        if not turn.done:
            return None
        return "max_turns" if self._truncated else "completed"

    def state(self) -> SlotState:
        """Return the present state, from which another process can go on."""
        return SlotState(self.index, self.episode, self.turns_played, tuple(self._responses))

    async def restore(self, state: SlotState) -> None:
        """Restore a state, replaying the current episode up to its last response.

        An episode that cannot be replayed is dropped, and the next one begins.
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
            self._apply(response, result)

    async def rewind(self, state: SlotState) -> None:
        """Return to an earlier state, with another process."""
        await self.drop_episode()
        await self.restore(state)

    def _begin(self, opening: ResetResult) -> None:
        self._memory.begin(opening.observation)
        self._instruction_prompt, self._compact_prompt = opening.instruction_prompt, opening.compact_prompt
        self.state_key = opening.state_key
        self._in_episode, self._done, self._truncated = True, False, False

    def _apply(self, response: str, result: ActionResult) -> None:
        self._memory.remember(response=result.remembered, action=result.action, observation=result.observation)
        self._responses.append(response)
        self._instruction_prompt, self._compact_prompt = result.instruction_prompt, result.compact_prompt
        self.state_key = result.state_key
        self._rewards.append(result.reward)
        self._is_solved = result.info.get("success", 0.0) > 0
        self._done, self._truncated = result.done, result.truncated

    def _next_episode(self) -> None:
        self.episode += 1
        self._rewards.clear()
        self._is_solved = False
        self._responses.clear()
        self._in_episode = self._done = False
