"""One trajectory of verl's agent loops: what the policy and the tools said in it, and what broke."""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from verl.workers.rollout.replica import TokenOutput

from turnmill.core.errors import EpisodeError
from turnmill.core.trajectory import StopReason, TrajectoryOutcome, Turn
from turnmill.rollout.episode_id import EpisodeId
from turnmill.rollout.episode_metrics import EpisodeMetrics
from turnmill.rollout.journal import Journal
from turnmill.rollout.multi_turn.tool_results import ToolResult, decode_result, encode_results
from turnmill.rollout.timing import Timing
from turnmill.rollout.token_integrity import pack_tokens, token_checksum
from turnmill.tasks import Task


@dataclass(slots=True)
class Generation:
    """A response, what it was sampled after, and what tools answered it."""

    prompt_ids: tuple[int, ...]
    output: TokenOutput
    asked_at: float = 0.0
    seconds: float = 0.0
    calls: list["Call"] = field(default_factory=list)


@dataclass(slots=True)
class Call:
    """A call of a tool; `answered` is there once it has been done, here or in an earlier attempt."""

    turn: int
    number: int
    tool: str
    answered: ToolResult | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


class Conversation:
    """What is known of a trajectory outside the loop that plays it.

    After a restart the loop is played again from its prompt: responses and answers of tools that the journal has are
    given to it as they were, as long as it asks for them in the same words.
    """

    def __init__(
        self, name: EpisodeId, task: Task, *, run_name: str, journal: Journal, decode: Callable[..., str]
    ) -> None:
        self.name = str(name)
        self.step = name.step
        self.validate = name.validate
        self.sampling_stream = name.sampling_stream
        self.trajectory_id = f"{run_name}-{name}-{secrets.token_hex(4)}"
        self.task = task
        self.generations: list[Generation] = []
        self.outputs: list[Any] = []
        self.failure: EpisodeError | None = None
        """What ends the trajectory as failed, however the loop goes on."""

        self.broken: Exception | None = None
        """What ends the run."""

        self.stop_reason: StopReason = "completed"
        self.detail = ""
        self.timing = Timing()
        self.figures = EpisodeMetrics()
        self._journal = journal
        self._decode = decode
        self._keeping = asyncio.Lock()
        self._kept: dict[int, Turn] = {}

    async def begin(self) -> None:
        """Find what the journal has of it."""
        begun = await self._journal.open(self)
        self.trajectory_id = begun.trajectory_id
        # A turn is kept again whenever a tool has answered; the last one has all of it.
        self._kept = {int(turn.metrics["number"]): turn for turn in begun.turns}
        self.figures.put("turns_carried_on", float(len(self._kept)))

    async def end(self, outcome: TrajectoryOutcome) -> None:
        """It is over."""
        await self._journal.finish(self, outcome)

    # ---- responses ----

    def said_before(self, prompt_ids: Sequence[int]) -> TokenOutput | None:
        """The next response, if an earlier attempt has it after the very same tokens."""
        turn = self._kept.get(len(self.generations))
        if turn is None or turn.metrics["context"] != token_checksum(prompt_ids):
            self._kept = {}
            return None
        oldest = int(turn.metrics["oldest_version"])
        output = TokenOutput(
            token_ids=list(turn.response_ids),
            log_probs=list(turn.log_probs) or None,
            stop_reason="length" if turn.metrics["cut_off"] else "completed",
            extra_fields={"min_global_steps": oldest, "max_global_steps": turn.policy_version},
        )
        self.generations.append(
            Generation(tuple(prompt_ids), output, turn.asked_at, turn.seconds.get("generation", 0.0))
        )
        return output

    async def say(self, prompt_ids: Sequence[int], output: TokenOutput, *, asked_at: float) -> None:
        """Keep a response; what was said before it is whole."""
        if self.generations:
            await self._keep(len(self.generations) - 1, unanswered=False)
        seconds = max(0.0, time.time() - asked_at)
        self.generations.append(Generation(tuple(prompt_ids), output, asked_at, seconds))
        await self._keep(len(self.generations) - 1, unanswered=True)

    @property
    def sampled(self) -> bytes:
        """Every token that the engine gave, packed."""
        return b"".join(pack_tokens(generation.output.token_ids) for generation in self.generations)

    @property
    def policy_versions(self) -> tuple[int, int]:
        """Of its tokens, the oldest and the newest."""
        told = [generation.output.extra_fields for generation in self.generations]
        versions = [int(fields.get(name) or 0) for fields in told for name in ("min_global_steps", "max_global_steps")]
        return min(versions, default=0), max(versions, default=0)

    # ---- tools ----

    def call(self, tool: str) -> Call:
        """The next call of the response that was said last."""
        number = len(self.generations) - 1
        calls = self.generations[-1].calls if self.generations else []
        call = Call(number, len(calls), tool)
        calls.append(call)
        if (turn := self._kept.get(number)) is not None:
            call.answered = decode_result(turn.observation, call.number, tool)
        return call

    async def answer(self, call: Call, answered: ToolResult) -> None:
        """Keep what a tool answered."""
        call.answered = answered
        if call.turn >= 0:
            await self._keep(call.turn, unanswered=True)

    def fail(self, error: EpisodeError) -> None:
        """End the trajectory as failed: verl's loops take every error of a tool for an answer."""
        self.failure = self.failure or error

    def require_sound(self) -> None:
        """Raise what has broken."""
        if self.broken is not None:
            raise self.broken
        if self.failure is not None:
            raise self.failure

    # ---- what is kept and told ----

    async def _keep(self, number: int, *, unanswered: bool) -> None:
        # Tools of one response may answer at once, and a rollout takes one turn after the other.
        async with self._keeping:
            try:
                await self._journal.append(self, replace(self.turn(number), unanswered=unanswered))
            except EpisodeError as error:
                self.fail(error)
                raise

    def turn(self, number: int) -> Turn:
        """A response as a turn; the observation holds the answers of tools."""
        generation = self.generations[number]
        output = generation.output
        versions = output.extra_fields
        return Turn(
            prompt_ids=generation.prompt_ids if number == 0 else (),
            response_ids=tuple(output.token_ids),
            log_probs=tuple(output.log_probs or ()),
            response_text=self._decode(output.token_ids, skip_special_tokens=False),
            observation=encode_results({call.number: (call.tool, call.answered) for call in generation.calls}),
            policy_version=int(versions.get("max_global_steps") or 0),
            asked_at=generation.asked_at,
            seconds={
                "generation": round(generation.seconds, 6),
                "tools": round(sum(call.seconds for call in generation.calls), 6),
            },
            metrics={
                "number": number,
                "context": token_checksum(generation.prompt_ids),
                "oldest_version": int(versions.get("min_global_steps") or 0),
                "cut_off": output.stop_reason == "length",
            },
        )

    def followed_by(self, number: int) -> tuple[int, ...]:
        """The tokens between a response and the next one, where the next was said in the same context."""
        if number + 1 >= len(self.generations):
            return ()
        before, after = self.generations[number], self.generations[number + 1].prompt_ids
        read = (*before.prompt_ids, *before.output.token_ids)
        return after[len(read) :] if after[: len(read)] == read else after

    def responses(self) -> Iterable[Sequence[int]]:
        """The tokens of every response."""
        return [generation.output.token_ids for generation in self.generations]


CURRENT: ContextVar[Conversation] = ContextVar("conversation")
"""The trajectory that a task plays; the tasks that it starts play the same."""
