"""One trajectory from its prompt to its stop reason."""

import secrets
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from turnmill.core.errors import ToolCallConnectionError, ToolCallError, ToolCallTimeoutError
from turnmill.core.trajectory import EpisodeSummary, TrajectoryOutcome, Turn, complete_turns
from turnmill.rollout.episode_id import EpisodeId
from turnmill.rollout.episode_metrics import MAX_TURNS_WITH_METRICS, EpisodeMetrics
from turnmill.rollout.generation import is_truncated
from turnmill.rollout.timing import Timing
from turnmill.rollout.token_integrity import pack_tokens
from turnmill.rollout.tokens import Tokens
from turnmill.rollout.tool_agent.client import ToolReply, ToolRequest
from turnmill.rollout.tool_agent.context import Context
from turnmill.rollout.tool_agent.rows import EpisodeResult
from turnmill.rollout.tool_agent.stop_tokens import find_action
from turnmill.tasks import Answer, Task

if TYPE_CHECKING:
    from turnmill.rollout.tool_agent.loop import ToolLoop

ANSWER_MARKS = ("\\boxed", "final_answer(")


@dataclass(frozen=True, slots=True)
class Limits:
    """How long the trajectory may get."""

    max_turns: int
    max_response_length: int


TOOL_SIGNALED_DONE = TrajectoryOutcome("completed", "tool_signaled_done")


@dataclass(slots=True)
class Said:
    """A response: its tokens, its text, and the action in it."""

    tokens: Tokens
    text: str
    action: str | None
    appended: tuple[int, ...] = ()
    """Of a stop token that the policy did not say."""

    versions: tuple[int, int] = (0, 0)
    cut_off: bool = False
    """Whether the limit of tokens ended it; an action may end at the limit by itself."""

    spoken: bool = True
    """Whether the policy was asked; it was not where a tool is called before the first response."""

    asked_at: float = 0.0
    seconds: float = 0.0
    """What the policy took for it."""


class Episode:
    """Plays one trajectory and keeps what it came to."""

    def __init__(
        self,
        name: EpisodeId,
        task: Task,
        loop: "ToolLoop",
        limits: Limits,
        sampling: Mapping[str, Any],
    ) -> None:
        self.name = str(name)
        self.step = name.step
        self.validate = name.validate
        self.sampling_stream = name.sampling_stream
        # Of this playing alone: what tools did in one that nobody carries on belongs to no other.
        self.trajectory_id = f"{loop.run_name}-{name}-{secrets.token_hex(4)}"
        self.task = task
        self.turns: list[Turn] = []
        self.tool_info: list[Mapping[str, Any]] = []
        self.prompt_ids: list[int] = []
        self.learned = False
        """Whether its tokens go into the loss."""

        self.figures = EpisodeMetrics()
        use_tool = loop.agent.enable_agent if task.use_tool is None else task.use_tool
        self.may_call_tools = use_tool and loop.tools is not None
        self._loop = loop
        self._agent = loop.agent
        self._limits = limits
        self._sampling = sampling
        self._end: TrajectoryOutcome | None = None
        self._context = Context([], budget=0)
        self._versions: list[int] = []
        self._sampled = b""
        self.timing = Timing()
        self._call_seconds = 0.0

    @property
    def num_turns(self) -> int:
        """How often the policy answered."""
        return len(self.turns)

    async def play(self, prompt_ids: Sequence[int]) -> None:
        """Play to the end, from the last turn that the journal has. Raises EpisodeError where it cannot go on."""
        self.prompt_ids = list(prompt_ids)
        self._context = Context(
            prompt_ids,
            budget=self._limits.max_response_length,
            cut_side=self._agent.truncate_response_side,
            max_start=self._agent.max_start_length,
        )
        begun = await self._loop.journal.open(self)
        self.trajectory_id = begun.trajectory_id
        await self._carry_on(complete_turns(begun.turns))
        if self._agent.call_tool_first and self.may_call_tools and not self.turns:
            await self._call_before_the_first_turn()
        while self._end is None:
            await self._turn()
        await self._loop.journal.finish(self, self._end)

    async def _carry_on(self, turns: Sequence[Turn]) -> None:
        """Go on after turns that were played before, in another process."""
        self.figures.put("turns_carried_on", float(len(turns)))
        for turn in turns:
            said = self._said_before(turn)
            if turn.unanswered:
                await self._act(said)
            else:
                self._take_up(turn, said)

    # ---- turns ----

    async def _turn(self) -> None:
        number = self._num_responses
        last = number >= self._limits.max_turns or not self.may_call_tools
        room = self._room()
        if room <= 0:
            self._end = TrajectoryOutcome("max_tokens", "max_response_length_reached")
            return
        said = await self._say(number, room, stops=not (last and self._agent.force_finish_for_last_turn))
        if said.action is not None and not last:
            await self._act(said)
            return
        self._context.begin_turn(said.tokens)
        self._end = self._why_it_ends(said, last=last)
        await self._keep(said, end=self._end)

    def _room(self) -> int:
        """Tokens that the next response may have."""
        self._make_room()
        room = self._context.room
        return room if self._agent.max_action_length is None else min(room, self._agent.max_action_length)

    def _make_room(self) -> None:
        """Where the context rolls, a response finds as much room as it may take, or half of the context."""
        half = self._limits.max_response_length // 2
        if self._agent.rolling_with_prompt and self._context.room < min(self._agent.max_action_length or half, half):
            self._context.roll()

    async def _say(self, number: int, room: int, *, stops: bool) -> Said:
        context_ids = self._context.ids
        asked_at, before = time.time(), self.timing.elapsed_seconds()
        with self.timing.measure("generation"):
            output = await self._loop.generate(
                self, number, context_ids, self._sampling, max_tokens=room, stops=stops and self.may_call_tools
            )
        self._sampled += pack_tokens(output.token_ids)
        kept = self._length_to_stop(output.token_ids) if stops and self.may_call_tools else len(output.token_ids)
        ids, log_probs = tuple(output.token_ids[:kept]), tuple(output.log_probs or ())[:kept]
        cut_off = is_truncated(ids, max_tokens=room, stop_token_ids=self._loop.stop_token_ids)
        newest = int(output.extra_fields.get("max_global_steps") or 0)
        oldest = int(output.extra_fields.get("min_global_steps") or 0)
        if self._agent.retokenization:
            ids, log_probs = self._spell_anew(ids, log_probs)
        self._versions += [oldest, newest]
        text = self._loop.tokenizer.decode(ids, skip_special_tokens=False)
        action = self._action_in(text) if self.may_call_tools else None
        said = Said(
            Tokens.sampled(ids, log_probs), text, action, versions=(oldest, newest),
            cut_off=cut_off, asked_at=asked_at,
            seconds=self.timing.elapsed_since(before).get("generation", 0.0),
        )  # fmt: skip
        if action is None and self.may_call_tools and number < self._agent.min_turns:
            said = self._with_forced_action(said)
        self._measure_response(number, said)
        return said

    def _length_to_stop(self, ids: Sequence[int]) -> int:
        """Tokens up to the first stop token: the engine passes over one in the middle of which it was interrupted."""

        def stopped(length: int) -> bool:
            text = self._loop.tokenizer.decode(ids[:length], skip_special_tokens=True)
            return any(stop in text for stop in self._loop.stop_tokens)

        # Most responses end with their stop token, so this is looked at first.
        return bisect_left(range(len(ids)), True, key=stopped) if stopped(len(ids) - 1) else len(ids)

    def _action_in(self, text: str) -> str | None:
        if self._loop.stop_tokens:
            return find_action(text, self._loop.stop_tokens)
        if self._agent.enable_mtrl:
            return self._without_turn_end(text)
        return None

    def _without_turn_end(self, text: str) -> str:
        text = text.partition(self._agent.turn_end_token)[0]
        end = self._loop.tokenizer.eos_token
        return text.removesuffix(end) if end else text

    def _with_forced_action(self, said: Said) -> Said:
        """The response as an action: up to the end of the turn, with the first stop token after it."""
        ids = said.tokens.ids
        enders = {
            *self._loop.observation_tokenizer.ids_of(self._agent.turn_end_token),
            self._loop.tokenizer.eos_token_id,
        }
        kept = next((position for position, token in enumerate(ids) if token in enders), len(ids))
        tokens = said.tokens[:kept]
        text = self._loop.tokenizer.decode(tokens.ids, skip_special_tokens=False)
        stop = self._loop.stop_tokens[0] if self._loop.stop_tokens else ""
        said.appended = self._loop.observation_tokenizer.ids_of(stop)
        said.tokens = tokens + Tokens.given(said.appended)
        said.text, said.action = text, text + stop
        return said

    def _spell_anew(
        self, ids: tuple[int, ...], log_probs: tuple[float, ...]
    ) -> tuple[tuple[int, ...], tuple[float, ...]]:
        text = self._loop.tokenizer.decode(ids, skip_special_tokens=False)
        anew = tuple(self._loop.tokenizer.encode(text, add_special_tokens=False))
        self.figures.add("retokenization_diff", float(anew != ids))
        return anew, log_probs if len(anew) == len(ids) else ()

    # ---- tools ----

    async def _act(self, said: Said) -> None:
        assert said.action is not None
        # Said anew after a restart it might be another action, beside what this one did.
        await self._loop.journal.append(self, self._as_turn(said, unanswered=True))
        answer = await self._call(said.action)
        response_ids = said.tokens.ids
        observation_ids = self._loop.observation_tokenizer.tokenize(
            answer.text, valid=answer.valid, response_ids=response_ids
        )
        self._context.begin_turn(said.tokens)
        self._context.add(self._observed(observation_ids))
        if answer.done:
            self._end = TOOL_SIGNALED_DONE
        await self._keep(said, answer=answer, observation_ids=observation_ids, end=self._end)

    async def _call_before_the_first_turn(self) -> None:
        answer = await self._call("", call_id="before")
        observation_ids = self._loop.observation_tokenizer.tokenize(
            answer.text, valid=answer.valid, response_ids=self.prompt_ids
        )
        self._context.add(self._observed(observation_ids))
        if answer.done:
            self._end = TOOL_SIGNALED_DONE
        await self._keep(
            Said(Tokens(), "", "", spoken=False), answer=answer, observation_ids=observation_ids, end=self._end
        )

    def _observed(self, ids: Sequence[int]) -> Tokens:
        return Tokens.given(ids, masked=self._agent.mask_observations)

    async def _call(self, action: str, call_id: str | None = None) -> ToolReply:
        """Have the action done; what cannot be done ends the trajectory, or is told as verl-tool tells it."""
        assert self._loop.tools is not None
        number = self._num_responses
        request = ToolRequest(
            self.trajectory_id,
            action,
            {
                **self.task.extra_info,
                "current_step": number,
                "max_turns": self._limits.max_turns,
                "turns_left": max(0, self._limits.max_turns - number - 1),
                "call_id": call_id or f"turn-{number}",
            },
        )
        started = time.monotonic()
        try:
            with self.timing.measure("tools"):
                answer = await self._loop.tools.call(request)
        except ToolCallError as error:
            self.figures.add("tool_call_success", 0.0)
            if self._agent.on_tool_failure == "fail":
                raise
            return ToolReply(self._told(error), done=True, valid=False)
        finally:
            self._call_seconds = time.monotonic() - started
            self.figures.add("interact_time_time_sec", self._call_seconds)
        self._measure_call(answer)
        return answer

    def _told(self, error: ToolCallError) -> str:
        if isinstance(error, ToolCallTimeoutError):
            return f"Tool call timeout after {self._agent.tool_call_timeout:g} seconds."
        if isinstance(error, ToolCallConnectionError):
            return f"Tool server connection error: {error}"
        return f"Tool call error: {error}"

    # ---- what is kept ----

    @property
    def _num_responses(self) -> int:
        """Turns with a response, empty ones too; a tool called before the first one is a turn without."""
        return sum(bool(turn.metrics.get("spoken", True)) for turn in self.turns)

    async def _keep(
        self,
        said: Said,
        *,
        answer: ToolReply | None = None,
        observation_ids: Sequence[int] = (),
        end: TrajectoryOutcome | None,
    ) -> None:
        turn = self._as_turn(said, answer=answer, observation_ids=observation_ids, done=end is not None)
        self._append(turn, answer.info if answer else {})
        await self._loop.journal.append(self, turn)

    def _as_turn(
        self, said: Said, *, answer: ToolReply | None = None, observation_ids: Sequence[int] = (),
        done: bool = False, unanswered: bool = False,
    ) -> Turn:  # fmt: skip
        num_sampled = len(said.tokens) - len(said.appended)
        return Turn(
            prompt_ids=tuple(self.prompt_ids) if not self.turns else (),
            response_ids=said.tokens.ids[:num_sampled],
            log_probs=said.tokens.log_probs[:num_sampled],
            observation_ids=(*said.appended, *observation_ids),
            response_text=said.text,
            observation=answer.text if answer else "",
            action=said.action or "",
            valid=answer.valid if answer else True,
            reward=(answer.reward or 0.0) if answer else 0.0,
            done=done,
            policy_version=said.versions[1],
            unanswered=unanswered,
            metrics={
                "num_appended": len(said.appended),
                "oldest_version": said.versions[0],
                "called": answer is not None,
                "cut_off": said.cut_off,
                "spoken": said.spoken,
            },
            asked_at=said.asked_at,
            seconds={"generation": said.seconds} | ({"tools": round(self._call_seconds, 6)} if answer else {}),
        )

    def _append(self, turn: Turn, info: Mapping[str, Any]) -> None:
        self.turns.append(turn)
        self.tool_info.append(info)

    def _said_before(self, turn: Turn) -> Said:
        """The response of a turn that was played before."""
        appended = turn.observation_ids[: int(turn.metrics.get("num_appended", 0))]
        versions = int(turn.metrics.get("oldest_version", turn.policy_version)), turn.policy_version
        self._make_room()
        self._versions += versions
        self._sampled += pack_tokens(turn.response_ids)
        said = Said(
            Tokens.sampled(turn.response_ids, turn.log_probs) + Tokens.given(appended),
            turn.response_text,
            turn.action or None,
            appended,
            versions,
            cut_off=bool(turn.metrics.get("cut_off")),
            spoken=bool(turn.metrics.get("spoken", True)),
            asked_at=turn.asked_at,
            seconds=turn.seconds.get("generation", 0.0),
        )
        if said.spoken:
            self._measure_response(self._num_responses, said)
        return said

    def _take_up(self, turn: Turn, said: Said) -> None:
        """Take a whole turn as it was played before."""
        last = self._num_responses >= self._limits.max_turns or not self.may_call_tools
        called = bool(turn.metrics.get("called"))
        self._context.begin_turn(said.tokens)
        self._context.add(self._observed(turn.observation_ids[len(said.appended) :]))
        if called:
            self._measure_call(ToolReply(turn.observation, turn.done, turn.valid, turn.reward or None))
        self._append(turn, {})
        if turn.done:
            self._end = TOOL_SIGNALED_DONE if called else self._why_it_ends(said, last=last)

    def _why_it_ends(self, said: Said, *, last: bool) -> TrajectoryOutcome:
        if not self.may_call_tools:
            return TrajectoryOutcome(
                "max_tokens" if said.cut_off else "completed", f"no_tool-{'length' if said.cut_off else 'stop'}"
            )
        if said.action is not None and last:
            return TrajectoryOutcome("max_turns", "max_turns_reached")
        if said.cut_off:
            return TrajectoryOutcome("max_tokens", "finish_reason_length")
        empty = not self._without_turn_end(said.text).strip()
        return TrajectoryOutcome("completed", f"model_chose_to_finish{'_with_empty_response' if empty else ''}")

    # ---- what it came to ----

    def mask(self, turn: Turn) -> tuple[int, ...]:
        """Which tokens of a turn are learned from, as the log of trajectories has it."""
        said, appended = len(turn.response_ids), int(turn.metrics.get("num_appended", 0))
        observed = len(turn.observation_ids) - appended
        if not self.learned:
            return (0, said + appended + observed)
        return () if self._agent.mask_observations or not observed else (said, appended, observed)

    def answer(self) -> Answer:
        """What the trajectory said, in words."""
        decode = self._loop.tokenizer.decode
        said = [decode(turn.response_ids, skip_special_tokens=True) for turn in self.turns if turn.response_ids]
        whole = decode(self._context.ids[len(self.prompt_ids) :], skip_special_tokens=True)
        return Answer(last=said[-1] if said else "", responses="".join(said), whole=whole)

    def result(self, reward: float) -> EpisodeResult:
        """Return the summary and the rows of an episode that has ended."""
        assert self._end is not None
        finished = self._end.stop_reason == "completed"
        void = not self.figures.total("valid_action") and not any(
            mark in turn.response_text for turn in self.turns for mark in ANSWER_MARKS
        )
        learned = not (self._agent.mask_overlong_loss and not finished) and not (self._agent.mask_void_traj and void)
        self._measure_whole(finished=finished, void=void, learned=learned)
        versions, rows = self._versions or [0], self._context.rows()
        self.learned = learned
        summary = EpisodeSummary(
            episode_id=self.name,
            reward=reward,
            stop_reason=self._end.stop_reason,
            success=reward > 0,
            num_turns=self._num_responses,
            num_rows=len(rows),
            policy_versions=(min(versions), max(versions)),
            sampled_tokens=self._sampled,
            seconds=self.timing.elapsed_seconds(),
            metrics=self.figures.read(),
        )
        return EpisodeResult(summary, rows, self._end.detail, learned)

    def _measure_response(self, number: int, said: Said) -> None:
        self.figures.add("per_action_length", len(said.tokens))
        self.figures.add("empty_responses", float(not self._without_turn_end(said.text).strip()))
        if said.tokens.log_probs:
            mean = sum(said.tokens.log_probs) / len(said.tokens.log_probs)
            self.figures.add("per_action_logp", mean)
            if number < MAX_TURNS_WITH_METRICS:
                self.figures.put(f"turn_{number}_action_logp", mean)

    def _measure_call(self, answer: ToolReply) -> None:
        self.figures.add("tool_call_success", 1.0)
        self.figures.add("valid_action", float(answer.valid))
        if answer.reward is not None:
            self.figures.add("per_reward_from_tool", answer.reward)
        for name, value in answer.metrics.items():
            self.figures.add(name, value)
        of_tool = answer.info.get("metrics")
        if isinstance(of_tool, Mapping):
            for name, value in of_tool.items():
                if isinstance(value, (int, float)):
                    self.figures.add(f"tool_avg_{name}", float(value))

    def _measure_whole(self, *, finished: bool, void: bool, learned: bool) -> None:
        observed = [len(turn.observation_ids) for turn in self.turns if turn.observation_ids]
        for length in observed:
            self.figures.add("per_obs_length", length)
        spoken = sum(len(turn.response_ids) for turn in self.turns)
        for name, value in {
            "num_turns": self._num_responses,
            "num_tool_calls": self.figures.count("tool_call_success"),
            "traj_actions_length": spoken,
            "traj_obs_length": sum(observed),
            "generated_length": spoken + sum(observed),
            "is_traj_finished": finished,
            "valid_traj": not void,
            "no_loss_on_traj": not learned,
        }.items():
            self.figures.put(name, float(value))
