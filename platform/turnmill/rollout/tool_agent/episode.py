"""One episode with tools, from its prompt to its stop reason.

One file, since playing a turn and restoring it from the journal must do the same to the same state.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from PIL.Image import Image

from turnmill.core.errors import (
    ToolCallChangedError,
    ToolCallConnectionError,
    ToolCallError,
    ToolCallLostWriteError,
    ToolCallTimeoutError,
)
from turnmill.core.trajectory import EpisodeSummary, TrajectoryOutcome, Turn, complete_turns
from turnmill.jobs.tool_agent import ToolAgent
from turnmill.rollout.episode_id import EpisodeId
from turnmill.rollout.episode_metrics import EpisodeMetrics
from turnmill.rollout.generation import is_truncated
from turnmill.rollout.journal import Journal
from turnmill.rollout.texts import Decode
from turnmill.rollout.timing import Timing
from turnmill.rollout.token_integrity import pack_tokens
from turnmill.rollout.tokens import Tokens
from turnmill.rollout.tool_agent.client import ToolRequest, ToolServerClient
from turnmill.rollout.tool_agent.context import Context
from turnmill.rollout.tool_agent.images import data_url, open_image
from turnmill.rollout.tool_agent.metrics import measure_call, measure_episode, measure_response
from turnmill.rollout.tool_agent.observations import Observation, ObservationTokenizer
from turnmill.rollout.tool_agent.replies import ToolReply
from turnmill.rollout.tool_agent.response import Response, ResponseParser, has_response
from turnmill.rollout.tool_agent.rows import EpisodeResult
from turnmill.rollout.tool_agent.server_errors import backoff_seconds
from turnmill.rollout.verl_classes import TokenOutput
from turnmill.rollout.verl_types import SamplingParams, Tokenizer
from turnmill.tasks import Answer, Task

ANSWER_MARKS = ("\\boxed", "final_answer(")
TOOL_SIGNALED_DONE = TrajectoryOutcome("completed", "tool_signaled_done")

BEFORE_FIRST_RESPONSE = "before"
"""Id of the call that `callToolFirst` asks for."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the length of an episode."""

    max_turns: int
    max_response_length: int


class LoopServices(Protocol):
    """State that all episodes of an agent loop share."""

    agent: ToolAgent
    run_name: str
    tokenizer: Tokenizer
    decode: Decode
    observation_tokenizer: ObservationTokenizer
    response_parser: ResponseParser
    stop_token_ids: frozenset[int]
    tools: ToolServerClient | None
    journal: Journal

    async def generate(
        self,
        episode: "Episode",
        turn: int,
        prompt_ids: list[int],
        sampling_params: SamplingParams,
        *,
        max_tokens: int,
        stops: bool,
        images: Sequence[object] = (),
    ) -> TokenOutput:
        """Return the policy's response to a prompt. Raises InferenceError."""


class Episode:
    """Plays one episode, turn by turn, and keeps its turns."""

    def __init__(
        self, name: EpisodeId, task: Task, loop: LoopServices, limits: Limits, sampling_params: SamplingParams
    ) -> None:
        self.name = str(name)
        self.step = name.step
        self.validate = name.validate
        self.sampling_stream = name.sampling_stream
        # Unique, so that no other attempt at the episode gets its tools' state, unless it resumes this one.
        self.trajectory_id = f"{loop.run_name}-{name}-{secrets.token_hex(16)}"
        self.task = task
        self.turns: list[Turn] = []
        self.tool_info: list[Mapping[str, object]] = []
        self.prompt_ids: list[int] = []
        self.trained = False
        """True if its tokens are in the loss."""

        self.timing = Timing()
        use_tool = loop.agent.enable_agent if task.use_tool is None else task.use_tool
        self.may_call_tools = use_tool and loop.tools is not None
        self._metrics = EpisodeMetrics()
        self._loop = loop
        self._agent = loop.agent
        self._parser = loop.response_parser
        self._limits = limits
        self._sampling_params = sampling_params
        self._outcome: TrajectoryOutcome | None = None
        self._context = Context([], budget=0)
        self._prompt_images: list[str] = []
        self._policy_versions: list[int] = []
        self._sampled_tokens = b""
        self._call_seconds = 0.0

    @property
    def num_turns(self) -> int:
        """Number of turns so far."""
        return len(self.turns)

    async def play(self, prompt_ids: Sequence[int], images: Sequence[Image] = ()) -> None:
        """Play to the end, from the last turn in the journal. Raises EpisodeError if the episode fails.

        `images` are those of the prompt.
        """
        self.prompt_ids = list(prompt_ids)
        self._prompt_images = [data_url(image) for image in images] if self.may_call_tools else []
        self._context = Context(
            prompt_ids,
            budget=self._limits.max_response_length,
            cut_side=self._agent.truncate_response_side,
            max_start=self._agent.max_start_length,
            images=images,
            image_id=self._loop.observation_tokenizer.image_id,
            placeholders=self._loop.observation_tokenizer.placeholder_ids,
        )
        resumed = await self._loop.journal.open(self)
        self.trajectory_id = resumed.trajectory_id
        await self._resume(complete_turns(resumed.turns))
        if self._agent.call_tool_first and self.may_call_tools and not self.turns:
            await self._call_before_first_response()
        while self._outcome is None:
            await self._play_turn()
        await self._loop.journal.finish(self, self._outcome)

    async def _resume(self, turns: Sequence[Turn]) -> None:
        """Continue after turns that another process played."""
        self._metrics.put("turns_carried_on", float(len(turns)))
        for turn in turns:
            response = self._restore_response(turn)
            if turn.unanswered:
                await self._execute(response)
            else:
                self._restore_turn(turn, response)

    # ---- turns ----

    async def _play_turn(self) -> None:
        number = self._num_responses
        last = number >= self._limits.max_turns or not self.may_call_tools
        room = self._response_room()
        if room <= 0:
            self._outcome = TrajectoryOutcome("max_tokens", "max_response_length_reached")
            return
        response = await self._generate(number, room, stops=not (last and self._agent.force_finish_for_last_turn))
        if response.action is not None and not last:
            await self._execute(response)
            return
        self._context.begin_turn(response.tokens)
        self._outcome = self._outcome_after(response, last=last)
        await self._add_turn(response)

    def _response_room(self) -> int:
        """Return the number of tokens that the next response may have."""
        self._make_room()
        room = self._context.room
        return room if self._agent.max_action_length is None else min(room, self._agent.max_action_length)

    def _make_room(self) -> None:
        """Roll the context, if enabled, so that the next response has half of the context, or `maxActionLength`."""
        half = self._limits.max_response_length // 2
        if self._agent.rolling_with_prompt and self._context.room < min(self._agent.max_action_length or half, half):
            self._context.roll()

    async def _generate(self, number: int, room: int, *, stops: bool) -> Response:
        stops = stops and self.may_call_tools
        context_ids = self._context.ids
        asked_at, before = time.time(), self.timing.elapsed_seconds()
        with self.timing.measure("generation"):
            output = await self._loop.generate(
                self,
                number,
                context_ids,
                self._sampling_params,
                max_tokens=room,
                stops=stops,
                images=self._context.images,
            )
        seconds = self.timing.elapsed_since(before).get("generation", 0.0)
        self._sampled_tokens += pack_tokens(output.token_ids)
        length = self._parser.length_to_stop(output.token_ids) if stops else len(output.token_ids)
        ids, log_probs = tuple(output.token_ids[:length]), tuple(output.log_probs or ())[:length]
        truncated = is_truncated(ids, max_tokens=room, stop_token_ids=self._loop.stop_token_ids)
        oldest, newest = (int(output.extra_fields.get(f"{end}_global_steps") or 0) for end in ("min", "max"))
        self._policy_versions += [oldest, newest]
        if self._agent.retokenization:
            ids, log_probs = self._retokenize(ids, log_probs)
        text = self._loop.decode(ids, skip_special_tokens=False)
        action = self._parser.find_action(text) if self.may_call_tools else None
        response = Response(
            Tokens.sampled(ids, log_probs), text, action, policy_versions=(oldest, newest),
            truncated=truncated, asked_at=asked_at, seconds=seconds,
        )  # fmt: skip
        if action is None and self.may_call_tools and number < self._agent.min_turns:
            response = self._parser.force_action(response)
        self._measure_response(number, response)
        return response

    def _retokenize(
        self, ids: tuple[int, ...], log_probs: tuple[float, ...]
    ) -> tuple[tuple[int, ...], tuple[float, ...]]:
        retokenized = self._parser.retokenize(ids)
        self._metrics.add("retokenization_diff", float(retokenized != ids))
        return retokenized, log_probs if len(retokenized) == len(ids) else ()

    def _measure_response(self, number: int, response: Response) -> None:
        measure_response(self._metrics, number, response, empty=self._parser.is_empty(response.text))

    # ---- tools ----

    async def _execute(self, response: Response) -> None:
        """Call the tool with a response's action and add the observation."""
        assert response.action is not None
        # Stored before the call, as the policy might generate another action after a restart.
        await self._loop.journal.append(self, response.as_turn(prompt_ids=self._first_prompt_ids, unanswered=True))
        answer = await self._call(response.action)
        self._context.begin_turn(response.tokens)
        await self._observe(response, answer, response.tokens.ids)

    async def _call_before_first_response(self) -> None:
        answer = await self._call("", call_id=BEFORE_FIRST_RESPONSE)
        await self._observe(Response(Tokens(), "", "", generated=False), answer, self.prompt_ids)

    async def _observe(self, response: Response, answer: ToolReply, preceding_ids: Sequence[int]) -> None:
        observation = Observation()
        # An invalid action that ends the trajectory is its last response: no turn would answer to an observation.
        if answer.text or answer.valid or not answer.done:
            tokenizer = self._loop.observation_tokenizer
            tokenize = partial(
                tokenizer.tokenize, answer.text, valid=answer.valid, response_ids=preceding_ids, images=answer.images
            )
            # Images take long to process.
            observation = await asyncio.to_thread(tokenize) if answer.images else tokenize()
        self._context.add(self._observed(observation.ids), [open_image(file) for file in observation.images])
        if answer.done:
            self._outcome = TOOL_SIGNALED_DONE
        await self._add_turn(response, answer=answer, observation=observation)

    def _observed(self, ids: Sequence[int]) -> Tokens:
        return Tokens.given(ids, masked=self._agent.mask_observations)

    async def _call(self, action: str, call_id: str | None = None) -> ToolReply:
        """Return a tool's answer; a failed call raises ToolCallError or ends the episode with verl-tool's message."""
        started = time.monotonic()
        try:
            with self.timing.measure("tools"):
                answer = await self._answer(action, call_id or _call_id(self._num_responses))
        except ToolCallError as error:
            self._metrics.add("tool_call_success", 0.0)
            if self._agent.on_tool_failure == "fail":
                raise
            return ToolReply(self._failure_message(error), done=True, valid=False)
        finally:
            self._call_seconds = time.monotonic() - started
            self._metrics.sum("interact_time_time_sec", self._call_seconds)
        measure_call(self._metrics, answer)
        return answer

    async def _answer(self, action: str, call_id: str) -> ToolReply:
        """Return a tool's answer; calls that a server has lost with its store are made again before it.

        That may happen again meanwhile, and lasts no longer than an outage.
        """
        assert self._loop.tools is not None
        lost: ToolCallLostWriteError | None = None
        deadline, losses = time.monotonic() + self._agent.tool_outage_timeout, 0
        while True:
            try:
                if lost is not None:
                    await self._repeat_lost_calls(lost)
                return await self._loop.tools.call(self._request(action, self._num_responses, call_id))
            except ToolCallChangedError:
                raise
            except ToolCallLostWriteError as error:
                if time.monotonic() > deadline or not any(turn.tool_version for turn in self.turns):
                    raise
                lost, losses = error, losses + 1
            await asyncio.sleep(backoff_seconds(losses, lost))

    def _request(self, action: str, number: int, call_id: str, turns: int | None = None) -> ToolRequest:
        """Return the call of an action after so many responses; by default after all turns."""
        before = self.turns[:turns]
        extra = {
            **({"images": self._prompt_images} if self._prompt_images else {}),
            **self.task.extra_info,
            "current_step": number,
            "max_turns": self._limits.max_turns,
            "turns_left": max(0, self._limits.max_turns - number - 1),
            "call_id": call_id,
            # Of the last call that changed the tools' state, which must not be older.
            "after_version": next((turn.tool_version for turn in reversed(before) if turn.tool_version), ""),
        }
        return ToolRequest(self.trajectory_id, action, extra)

    async def _repeat_lost_calls(self, lost: ToolCallLostWriteError) -> None:
        """Send all calls of tools with state again, with their ids, so that the store has again what it has lost.

        What it still has is answered from its records; the rest is executed again, with the same idempotency keys.
        Raises ToolCallChangedError if one gives another observation, as the context would not be about the tools'
        state, and ToolCallLostWriteError if the store loses some again.
        """
        assert self._loop.tools is not None
        number = 0
        for position, turn in enumerate(self.turns):
            if turn.tool_version:
                call_id = _call_id(number) if has_response(turn) else BEFORE_FIRST_RESPONSE
                answer = await self._loop.tools.call(self._request(turn.action, number, call_id, turns=position))
                if not _is_answer(answer, turn):
                    raise ToolCallChangedError(
                        f"{lost} Its call {call_id!r}, sent again, got another observation."
                    ) from lost
                self.turns[position] = replace(turn, tool_version=answer.version)
            number += has_response(turn)
        log.warning("Calls sent again", extra={"trajectory": self.name, "cause": str(lost)})

    def _failure_message(self, error: ToolCallError) -> str:
        if isinstance(error, ToolCallTimeoutError):
            return f"Tool call timeout after {self._agent.tool_call_timeout:g} seconds."
        if isinstance(error, ToolCallConnectionError):
            return f"Tool server connection error: {error}"
        return f"Tool call error: {error}"

    # ---- turns that are kept ----

    @property
    def _num_responses(self) -> int:
        """Number of turns with a response, even an empty one; a tool call before the first response has none."""
        return sum(map(has_response, self.turns))

    @property
    def _first_prompt_ids(self) -> Sequence[int]:
        """The prompt, which only the first turn stores."""
        return () if self.turns else self.prompt_ids

    async def _add_turn(
        self, response: Response, *, answer: ToolReply | None = None, observation: Observation | None = None
    ) -> None:
        turn = response.as_turn(
            prompt_ids=self._first_prompt_ids,
            answer=answer,
            observation=observation or Observation(),
            tool_seconds=self._call_seconds,
            done=self._outcome is not None,
        )
        self.turns.append(turn)
        self.tool_info.append(answer.info if answer else {})
        await self._loop.journal.append(self, turn)

    def _restore_response(self, turn: Turn) -> Response:
        response = Response.from_turn(turn)
        self._make_room()
        self._policy_versions += response.policy_versions
        self._sampled_tokens += pack_tokens(turn.response_ids)
        if response.generated:
            self._measure_response(self._num_responses, response)
        return response

    def _restore_turn(self, turn: Turn, response: Response) -> None:
        last = self._num_responses >= self._limits.max_turns or not self.may_call_tools
        called = bool(turn.metrics.get("called"))
        self._context.begin_turn(response.tokens)
        images = [open_image(file) for file in turn.images]
        self._context.add(self._observed(turn.observation_ids[len(response.appended_ids) :]), images)
        if called:
            measure_call(self._metrics, ToolReply(turn.observation, turn.done, turn.valid, turn.reward or None))
        self.turns.append(turn)
        self.tool_info.append({})
        if turn.done:
            self._outcome = TOOL_SIGNALED_DONE if called else self._outcome_after(response, last=last)

    def _outcome_after(self, response: Response, *, last: bool) -> TrajectoryOutcome:
        """Return the outcome of an episode that ends with a response without a tool call."""
        if not self.may_call_tools:
            if response.truncated:
                return TrajectoryOutcome("max_tokens", "no_tool-length")
            return TrajectoryOutcome("completed", "no_tool-stop")
        if response.action is not None and last:
            return TrajectoryOutcome("max_turns", "max_turns_reached")
        if response.truncated:
            return TrajectoryOutcome("max_tokens", "finish_reason_length")
        empty = self._parser.is_empty(response.text)
        return TrajectoryOutcome("completed", f"model_chose_to_finish{'_with_empty_response' if empty else ''}")

    # ---- the result ----

    def mask(self, turn: Turn) -> tuple[int, ...]:
        """Return the run lengths of a turn's response mask, as `TurnRecord.mask`."""
        num_response, num_appended = len(turn.response_ids), int(turn.metrics.get("num_appended", 0))
        num_observation = len(turn.observation_ids) - num_appended
        if not self.trained:
            return (0, num_response + num_appended + num_observation)
        if self._agent.mask_observations or not num_observation:
            return ()
        return num_response, num_appended, num_observation

    def answer(self) -> Answer:
        """Return the texts from which the task's reward is computed."""
        text_of = partial(self._loop.decode, skip_special_tokens=True)
        responses = [turn.response_ids for turn in self.turns if turn.response_ids]
        return Answer(
            last=lambda: "".join(map(text_of, responses[-1:])),
            responses=lambda: "".join(map(text_of, responses)),
            whole=lambda: text_of(self._context.ids[len(self.prompt_ids) :]),
        )

    def result(self, reward: float, *, prediction: str | None = None) -> EpisodeResult:
        """Return the summary and the rows of a finished episode."""
        assert self._outcome is not None
        finished = self._outcome.stop_reason == "completed"
        void = not self._metrics.total("valid_action") and not any(
            mark in turn.response_text for turn in self.turns for mark in ANSWER_MARKS
        )
        masked = (self._agent.mask_overlong_loss and not finished) or (self._agent.mask_void_traj and void)
        self.trained = not masked
        num_turns, rows = self._num_responses, self._context.rows()
        measure_episode(
            self._metrics, self.turns, num_turns=num_turns, finished=finished, void=void, trained=self.trained
        )
        versions = self._policy_versions or [0]
        summary = EpisodeSummary(
            episode_id=self.name,
            reward=reward,
            stop_reason=self._outcome.stop_reason,
            success=reward > 0,
            num_turns=num_turns,
            num_rows=len(rows),
            policy_versions=(min(versions), max(versions)),
            sampled_tokens=self._sampled_tokens,
            seconds=self.timing.elapsed_seconds(),
            metrics=self._metrics.read(),
            prediction=prediction,
        )
        return EpisodeResult(summary, rows, self._outcome.detail, self.trained)


def _call_id(number: int) -> str:
    """Return the id of a response's call."""
    return f"turn-{number}"


def _is_answer(answer: ToolReply, turn: Turn) -> bool:
    """Return whether a tool has answered what it answered in a turn, of whose images some may have been left out."""
    said = (answer.text, answer.valid, answer.done, answer.reward or 0.0)
    return said == (turn.observation, turn.valid, turn.done, turn.reward) and set(turn.images) <= set(answer.images)
