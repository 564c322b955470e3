"""One episode of an agent, from its seed to its stop reason."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace

from turnmill.core.errors import SettingsError
from turnmill.core.trajectory import StopReason, TrajectoryOutcome, Turn, complete_turns
from turnmill.environments.grl.agent_adapter import AgentView
from turnmill.environments.runtime.episode import ActionResult
from turnmill.environments.runtime.process import EnvironmentProcess
from turnmill.jobs.grl_agent import AgentGroup
from turnmill.rollout.episode_id import EpisodeId
from turnmill.rollout.grl.conversation import Conversation
from turnmill.rollout.grl.episode_summary import GrlEpisodeSummary
from turnmill.rollout.grl.lockstep import Lockstep
from turnmill.rollout.grl.runtime import GrlEpisodeRuntime
from turnmill.rollout.timing import Timing
from turnmill.rollout.token_integrity import pack_tokens
from turnmill.rollout.tokens import Tokens
from turnmill.rollout.verl_types import SamplingParams
from turnmill.tasks import Task

Message = dict[str, str]


class GrlEpisode:
    """Plays one episode, turn by turn, and keeps its turns."""

    def __init__(
        self, name: EpisodeId, group: AgentGroup, seed: int, loop: GrlEpisodeRuntime, sampling: SamplingParams
    ) -> None:
        self.name, self.step, self.validate = str(name), name.step, name.validate
        self.sampling_stream = name.sampling_stream
        self.group, self.seed = group, seed
        self.task = Task(name.task, ())
        self.trajectory_id = f"{loop.run_name}-{name}-{secrets.token_hex(16)}"
        self.turns: list[Turn] = []
        self.views: list[AgentView] = []
        """State of the agent before the first turn, and after each turn."""

        self.stop_reason: StopReason | None = None
        self.timing = Timing()
        self.conversation = Conversation(learn_all=loop.agent.loss_mask == "after_system")
        self._loop, self._agent, self._sampling = loop, loop.agent, sampling
        self._process: EnvironmentProcess = loop.environment_of(group.agent)
        self._messages: list[Message] = []
        self._sampled = b""

    @property
    def num_turns(self) -> int:
        """Number of turns so far."""
        return len(self.turns)

    async def play(self, lockstep: Lockstep | None) -> None:
        """Play to the end, from the last turn in the journal. Raises EpisodeError if the episode fails."""
        begun = await self._loop.journal.open(self)
        self.trajectory_id = begun.trajectory_id
        turns = [turn for turn in complete_turns(begun.turns) if not turn.unanswered]
        results = await self._begin([turn.response_text for turn in turns])
        for turn, result in zip(turns, results, strict=True):
            await self._append_prompt()
            self._add_turn(turn, result)
        while self.stop_reason is None:
            if lockstep is not None:
                with self.timing.measure("tools"):
                    await lockstep.wait()
            await self._turn()
        await self._loop.journal.finish(self, TrajectoryOutcome(self.stop_reason))

    async def close(self) -> None:
        """Close the environment."""
        await self._process.close()

    # ---- turns ----

    async def _begin(self, responses: Sequence[str]) -> Sequence[ActionResult]:
        """Start the agent's episode, and return the results of responses that the journal has."""
        with self.timing.measure("tools"):
            async with self._loop.environment_limit:
                if responses:
                    restored = await self._process.restore(self.seed, responses)
                    opening, results = restored.reset_result, restored.results
                else:
                    opening, results = await self._process.reset(self.seed), ()
        self.views.append(AgentView.model_validate_json(opening.observation))
        return results

    async def _turn(self) -> None:
        await self._append_prompt()
        if self.stop_reason is not None:
            return
        turn = await self._generate()
        with self.timing.measure("tools"):
            async with self._loop.environment_limit:
                result = await self._process.act(turn.response_text)
        self._add_turn(turn, result)
        await self._loop.journal.append(self, self.turns[-1])

    async def _append_prompt(self) -> None:
        """Append everything that the policy reads before its next response."""
        view = self.views[-1]
        async with self._loop.prompt_limit:
            await self._append_messages(view.messages)
        prefix = self._loop.ids_of(view.prefix)
        length, limit = len(self.conversation.ids) + len(prefix), self._agent.max_prompt_length
        if length > limit:
            if self._agent.truncation == "error":
                self._end_as_too_long(length)
                return
            self.conversation.cut(limit - len(prefix))
        self.conversation.append_context(prefix)

    async def _append_messages(self, messages: list[Message]) -> None:
        before, after = self._messages, messages
        self._messages = [dict(message) for message in messages]
        # An agent may reword its responses, but not the messages before them, which the policy has read.
        if not self.turns or after[: len(before)] != before or after[len(before) :][:1] != self._last_response(after):
            ids = await self._loop.tokenize_prompt(messages)
            self.conversation.begin(ids, given=self._loop.system_length(messages, ids))
            return
        answered = after[: len(before) + 1]
        read = self.conversation.ids
        merged, _, _ = await self._loop.ct_merge_context_msg(answered, after, read, [])
        kept = len(merged.token_ids) - merged.appended_token_count - len(merged.inserted_token_ids)
        if merged.token_ids[:kept] == read:
            self.conversation.append_context(merged.token_ids[kept:])
        else:
            # Some chat templates remove the end of an earlier turn.
            self.conversation.begin(merged.token_ids)

    def _last_response(self, messages: list[Message]) -> list[Message]:
        return [{"role": "assistant", "content": self.views[-1].response}] if messages else []

    def _end_as_too_long(self, length: int) -> None:
        if not self.turns:
            raise SettingsError(
                f"spec.agent.maxPromptLength ({self._agent.max_prompt_length}): the first prompt of "
                f"{self.group.agent.name} has {length} tokens. Raise it, or set truncation to left."
            )
        self.stop_reason = "max_tokens"

    async def _generate(self) -> Turn:
        ids, asked_at, before = self.conversation.ids, time.time(), self.timing.elapsed_seconds()
        with self.timing.measure("generation"):
            output = await self._loop.generate(self, self.num_turns, ids, self._sampling)
        oldest = int(output.extra_fields.get("min_global_steps") or 0)
        return Turn(
            prompt_ids=tuple(ids) if not self.turns else (),
            response_ids=tuple(output.token_ids),
            log_probs=tuple(output.log_probs or ()),
            response_text=self._loop.tokenizer.decode(output.token_ids, skip_special_tokens=True),
            policy_version=int(output.extra_fields.get("max_global_steps") or 0),
            metrics={"oldest_version": oldest},
            asked_at=asked_at,
            seconds={"generation": self.timing.elapsed_seconds()["generation"] - before["generation"]},
        )

    def _add_turn(self, turn: Turn, result: ActionResult) -> None:
        view = AgentView.model_validate_json(result.observation)
        self._sampled += pack_tokens(turn.response_ids)
        self.conversation.append_response(self._tokens_in_context(turn, view))
        end = self._loop.tokenizer.eos_token_id
        if self.conversation.ids[-1] != end and not result.done:
            # A response truncated at its limit still ends its turn of the chat.
            self.conversation.append_context([end])
        self.views.append(view)
        self.turns.append(
            replace(
                turn, observation=view.state, action=" || ".join(view.actions), valid=view.valid,
                reward=result.reward, done=result.done,
            )
        )  # fmt: skip
        if result.done:
            self.stop_reason = "completed" if result.terminated else "max_turns"

    def _tokens_in_context(self, turn: Turn, view: AgentView) -> Tokens:
        """Return a response as it is in the context: as sampled, or tokenized again in the agent's form."""
        if not self._agent.reformat_responses:
            return Tokens.sampled(turn.response_ids, turn.log_probs)
        text = view.response.removeprefix(self.views[-1].prefix)
        ids = [*self._loop.ids_of(text), self._loop.tokenizer.eos_token_id]
        return Tokens.sampled(ids, turn.log_probs if tuple(ids) == turn.response_ids else None)

    # ---- the result ----

    def observation_ids_after(self, number: int) -> tuple[int, ...]:
        """Return the tokens between a response and the next one; empty unless both are in one row as sampled."""
        places = self.conversation.response_ends[number : number + 2]
        if len(places) < 2 or places[0][0] != places[1][0] or self._agent.reformat_responses:
            return ()
        (row, end), (_, next_end) = places
        next_start = next_end + 1 - len(self.turns[number + 1].response_ids)
        return self.conversation.rows[row].response.ids[end + 1 : next_start]

    @property
    def reward(self) -> float:
        """Sum of the rewards and penalties of all turns."""
        return sum(turn.reward for turn in self.turns) + sum(view.penalty for view in self.views[1:])

    def summary(self) -> GrlEpisodeSummary:
        """Return the summary of a finished episode, which the trainer gets with its rows."""
        agent_metrics, num_turns = self.views[-1].metrics, self.num_turns
        assert self.stop_reason is not None
        return GrlEpisodeSummary(
            episode_id=self.name,
            reward=self.reward,
            stop_reason=self.stop_reason,
            success=agent_metrics.get(f"{self.group.agent.name}/success", 0.0) > 0,
            num_turns=num_turns,
            num_rows=len(self.conversation.rows),
            policy_versions=(
                min(int(turn.metrics["oldest_version"]) for turn in self.turns),
                max(turn.policy_version for turn in self.turns),
            ),
            sampled_tokens=self._sampled,
            seconds=self.timing.elapsed_seconds(),
            metrics={
                "num_turns": float(num_turns),
                "valid_action": sum(turn.valid for turn in self.turns) / num_turns,
            },
            row_rewards=True,
            group=self.task.number,
            tag=self.group.agent.name,
            turn_rewards=tuple(turn.reward for turn in self.turns),
            turn_penalties=tuple(view.penalty for view in self.views[1:]),
            response_ends=tuple(self.conversation.response_ends),
            response_lengths=tuple(self.conversation.response_lengths),
            generated_lengths=tuple(len(turn.response_ids) for turn in self.turns),
            chat=self._chat(),
            agent_metrics=agent_metrics,
        )

    def _chat(self) -> tuple[tuple[str, str], ...]:
        function = self._agent.validation_reward_function if self.validate else self._agent.reward_function
        return tuple((message["role"], message["content"]) for message in self.views[-1].messages) if function else ()
