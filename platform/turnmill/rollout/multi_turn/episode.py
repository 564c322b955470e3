"""One episode of verl's agent loops: its responses, its tool calls, and the errors that end it."""

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from turnmill.core.errors import EpisodeError
from turnmill.core.trajectory import StopReason, TrajectoryOutcome, Turn
from turnmill.rollout.episode_id import EpisodeId
from turnmill.rollout.episode_metrics import EpisodeMetrics
from turnmill.rollout.generation import policy_versions
from turnmill.rollout.journal import Journal, NoJournal
from turnmill.rollout.multi_turn.tool_results import ToolResult, decode_result, encode_results
from turnmill.rollout.texts import Decode
from turnmill.rollout.timing import Timing
from turnmill.rollout.token_integrity import pack_tokens, token_checksum
from turnmill.rollout.verl_classes import AgentLoopOutput, TokenOutput
from turnmill.tasks import Task


@dataclass(slots=True)
class Generation:
    """A response, the prompt it was sampled after, and the tool calls in it."""

    new_ids: tuple[int, ...]
    """Tokens of the prompt after the response before: the observation, or the whole prompt if that was rebuilt."""

    output: TokenOutput
    turn: Turn
    """What does not change of it as a turn."""

    calls: list["ToolCall"] = field(default_factory=list)
    observation: str = ""
    """The encoded results of its calls."""

    new_text: str | None = None
    """Text of the new tokens, once it was asked for."""

    def add_result(self, call: "ToolCall", result: ToolResult) -> None:
        """Add the result of one of its calls."""
        call.result = result
        self.observation = encode_results({each.number: (each.tool, each.result) for each in self.calls})


@dataclass(slots=True)
class ToolCall:
    """A call of a tool; it has a result once it has been made, in this attempt or an earlier one."""

    turn: int
    number: int
    tool: str
    result: ToolResult | None = None
    arguments: Mapping[str, object] = field(default_factory=dict)
    seconds: float = 0.0


class MultiTurnEpisode:
    """The state of an episode outside the loop that plays it.

    After a restart the loop plays again from the prompt: responses and tool results that the journal has are replayed,
    as long as the loop asks for them with the same tokens.
    """

    def __init__(self, episode_id: EpisodeId, task: Task, *, run_name: str, journal: Journal, decode: Decode) -> None:
        self.name = str(episode_id)
        self.step = episode_id.step
        self.validate = episode_id.validate
        self.sampling_stream = episode_id.sampling_stream
        self.trajectory_id = f"{run_name}-{episode_id}-{secrets.token_hex(16)}"
        self.task = task
        self.generations: list[Generation] = []
        self.outputs: list[AgentLoopOutput] = []
        """The rows that the loop returned."""

        self.failure: EpisodeError | None = None
        """The error that ends the episode as failed, even if the loop goes on."""

        self.run_error: Exception | None = None
        """The error that ends the run."""

        self.stop_reason: StopReason = "completed"
        self.stop_detail = ""
        self.timing = Timing()
        self.metrics = EpisodeMetrics()
        self._journal = journal
        self._decode = decode
        self._journal_lock = asyncio.Lock()
        self._journaled_turns: dict[int, Turn] = {}
        self._context: Sequence[int] = ()
        """The last prompt and its response, and what a loop has added since if it adds to this list."""

        self._num_known = 0
        """Length of the last prompt and its response."""

        self._grows = False
        """Whether the loop adds to the context's own list."""

        self._checksum = 0
        """That of the context."""

    async def open(self) -> None:
        """Open the episode in the journal, and load the turns that are there."""
        resumed = await self._journal.open(self)
        self.trajectory_id = resumed.trajectory_id
        # A turn is recorded again after each tool result; the last record has all of it.
        self._journaled_turns = {int(turn.metrics["number"]): turn for turn in resumed.turns}
        self.metrics.put("turns_carried_on", float(len(self._journaled_turns)))

    async def finish(self, outcome: TrajectoryOutcome) -> None:
        """Mark the episode as finished in the journal."""
        await self._journal.finish(self, outcome)

    # ---- responses ----

    def replay_response(self, prompt_ids: Sequence[int]) -> TokenOutput | None:
        """Return the next response of an earlier attempt; None if there is none after exactly these tokens."""
        turn = self._journaled_turns.get(len(self.generations))
        if turn is None or turn.metrics["context"] != self._new_ids_and_checksum(prompt_ids)[1]:
            self._journaled_turns = {}
            return None
        oldest = int(turn.metrics["oldest_version"])
        output = TokenOutput(
            token_ids=list(turn.response_ids),
            log_probs=list(turn.log_probs) or None,
            stop_reason="length" if turn.metrics["cut_off"] else "completed",
            extra_fields={"min_global_steps": oldest, "max_global_steps": turn.policy_version},
        )
        self._append(prompt_ids, output, turn.asked_at, turn.seconds.get("generation", 0.0))
        return output

    async def record_response(self, prompt_ids: Sequence[int], output: TokenOutput, *, asked_at: float) -> None:
        """Add a response, and record it in the journal; the turn before it is complete by now."""
        if self.generations:
            await self._journal_turn(len(self.generations) - 1, unanswered=False)
        seconds = max(0.0, time.time() - asked_at)
        self._append(prompt_ids, output, asked_at, seconds)
        await self._journal_turn(len(self.generations) - 1, unanswered=True)

    def _append(self, prompt_ids: Sequence[int], output: TokenOutput, asked_at: float, seconds: float) -> None:
        number = len(self.generations)
        new_ids, checksum = self._new_ids_and_checksum(prompt_ids)
        oldest_version, newest_version = policy_versions(output)
        turn = Turn(
            prompt_ids=new_ids if number == 0 else (),
            response_ids=tuple(output.token_ids),
            log_probs=tuple(output.log_probs or ()),
            response_text=self._decode(output.token_ids, skip_special_tokens=False),
            policy_version=newest_version,
            asked_at=asked_at,
            seconds={"generation": round(seconds, 6)},
            metrics={
                "number": number,
                "context": checksum,
                "oldest_version": oldest_version,
                "cut_off": output.stop_reason == "length",
            },
        )
        self.generations.append(Generation(new_ids, output, turn))
        if not (self._grows and prompt_ids is self._context):
            self._context, self._grows = [*prompt_ids, *output.token_ids], False
        self._num_known = len(prompt_ids) + len(output.token_ids)
        self._checksum = token_checksum(output.token_ids, checksum)

    def extended_in_place(self, context: list[int]) -> None:
        """Note that a loop has added the last response to this list, and will add to no other: it is not read again."""
        if len(context) == self._num_known:
            self._context, self._grows = context, True

    def _new_ids_and_checksum(self, prompt_ids: Sequence[int]) -> tuple[tuple[int, ...], int]:
        """Return the tokens of a prompt after the context, all of them if it is another one, and its checksum."""
        known = self._num_known
        in_place = self._grows and prompt_ids is self._context
        if in_place or list(prompt_ids[:known]) == list(self._context[:known]):
            new_ids = tuple(prompt_ids[known:])
            return new_ids, token_checksum(new_ids, self._checksum)
        return tuple(prompt_ids), token_checksum(prompt_ids)

    def text_of(self, response_ids: Sequence[int]) -> str:
        """Return the text of a response, which is known of the last one."""
        if self.generations and self.generations[-1].output.token_ids is response_ids:
            return self.generations[-1].turn.response_text
        return self._decode(response_ids, skip_special_tokens=False)

    def new_text(self, number: int) -> str:
        """Return the text between a response and the one before it."""
        generation = self.generations[number]
        if generation.new_text is None:
            generation.new_text = self._decode(generation.new_ids, skip_special_tokens=False)
        return generation.new_text

    def context_text(self, length: int) -> str | None:
        """Return the text of the context, put together; None if it has another length or must be decoded as a whole."""
        texts = [self.new_text(number) + each.turn.response_text for number, each in enumerate(self.generations)]
        num_tokens = sum(len(each.new_ids) + len(each.turn.response_ids) for each in self.generations)
        # A character may begin in one part and end in the next.
        return None if num_tokens != length or any("\ufffd" in text for text in texts) else "".join(texts)

    @property
    def sampled_tokens(self) -> bytes:
        """All tokens that the engine sampled, packed."""
        return b"".join(pack_tokens(generation.output.token_ids) for generation in self.generations)

    @property
    def policy_versions(self) -> tuple[int, int]:
        """Oldest and newest policy version of its tokens."""
        versions = [version for generation in self.generations for version in policy_versions(generation.output)]
        return min(versions, default=0), max(versions, default=0)

    # ---- tools ----

    def begin_tool_call(self, tool: str) -> ToolCall:
        """Return the next call of the last response, with its result if the journal has one."""
        number = len(self.generations) - 1
        calls = self.generations[-1].calls if self.generations else []
        call = ToolCall(number, len(calls), tool)
        calls.append(call)
        turn = self._journaled_turns.get(number)
        if turn is not None and (result := decode_result(turn.observation, call.number, tool)) is not None:
            self.generations[number].add_result(call, result)
        return call

    async def record_tool_result(self, call: ToolCall, result: ToolResult) -> None:
        """Add the result of a call, and record it in the journal."""
        if call.turn >= 0:
            self.generations[call.turn].add_result(call, result)
            await self._journal_turn(call.turn, unanswered=True)
        else:
            call.result = result

    def fail(self, error: EpisodeError) -> None:
        """Mark the episode as failed, as verl's loops would treat an exception of a tool as its response."""
        self.failure = self.failure or error

    def raise_if_failed(self) -> None:
        """Raise the error that ends the run or the episode, if there is one."""
        if self.run_error is not None:
            raise self.run_error
        if self.failure is not None:
            raise self.failure

    # ---- records ----

    async def _journal_turn(self, number: int, *, unanswered: bool) -> None:
        if isinstance(self._journal, NoJournal):
            return
        # Tools of one response may return at the same time, but the journal accepts one turn at a time.
        async with self._journal_lock:
            try:
                await self._journal.append(self, self.turn(number, unanswered=unanswered))
            except EpisodeError as error:
                self.fail(error)
                raise

    def turn(self, number: int, *, unanswered: bool = False) -> Turn:
        """Return a generation as a turn; its observation holds the encoded tool results."""
        generation = self.generations[number]
        tools = round(sum(call.seconds for call in generation.calls), 6)
        return replace(
            generation.turn,
            observation=generation.observation,
            seconds={**generation.turn.seconds, "tools": tools},
            unanswered=unanswered,
        )

    def observation_ids_after(self, number: int) -> tuple[int, ...]:
        """Return the tokens between a response and the next one, or the next prompt if the context was rebuilt."""
        return self.generations[number + 1].new_ids if number + 1 < len(self.generations) else ()

    def response_ids(self) -> Sequence[Sequence[int]]:
        """Return the tokens of every response."""
        return [generation.output.token_ids for generation in self.generations]


CURRENT_EPISODE: ContextVar[MultiTurnEpisode] = ContextVar("episode")
"""The episode that an asyncio task plays; tasks that it starts play the same one."""
