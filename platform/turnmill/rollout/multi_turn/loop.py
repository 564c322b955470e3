"""verl's tool agent loop, with settings that verl documents but no longer reads."""

import asyncio
import logging
from collections.abc import Sequence
from copy import copy

from verl.utils.tokenizer import get_processor_token_id

from turnmill.core.trajectory import StopReason
from turnmill.rollout.generation import is_truncated
from turnmill.rollout.multi_turn.appending import ContextAppender
from turnmill.rollout.multi_turn.episode import CURRENT_EPISODE
from turnmill.rollout.multi_turn.hermes import HermesCalls
from turnmill.rollout.multi_turn.tokenization_check import find_difference
from turnmill.rollout.multi_turn.verl_classes import (
    AgentData,
    AgentState,
    HermesToolParser,
    ToolAgentLoop,
    apply_chat_template,
)
from turnmill.rollout.tokens import num_runs
from turnmill.rollout.verl_classes import AgentLoopMetrics, AgentLoopOutput
from turnmill.rollout.verl_types import MergeResult, Message, SamplingParams

MAX_CHARACTERS = 20_000
"""Messages that are tokenized in the loop itself; longer ones take a thread, as all do with verl."""

log = logging.getLogger(__name__)


class MultiTurnLoop(ToolAgentLoop):
    """Adds a stop reason, a check of the tokenization, and the inference chat template to verl's loop."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        settings = self.rollout_config.multi_turn
        self.use_inference_chat_template = bool(settings.use_inference_chat_template)
        self.sanity_check = str(settings.tokenization_sanity_check_mode)
        self._rows: list[AgentLoopOutput] = []
        self._num_prompt_tokens = 0
        self._appender = ContextAppender.of(self.continuous_token_builder, self.tokenizer)
        if type(self.tool_parser) is HermesToolParser:
            self.tool_parser = HermesCalls(self.tokenizer)

    def for_episode(self) -> "MultiTurnLoop":
        """Return this loop for another episode, which shares what was made of the job: verl makes all of it anew."""
        loop = copy(self)
        loop._rows, loop._num_prompt_tokens = [], 0
        loop.loop = asyncio.get_running_loop()
        return loop

    async def run(  # type: ignore[override]
        self, sampling_params: SamplingParams, **row: object
    ) -> AgentLoopOutput | list[AgentLoopOutput]:
        """Play an episode; it has several rows if its context was rebuilt."""
        last = await super().run(sampling_params, **row)
        if self._rows and not last.response_mask:
            # There was no room for a response after the context was tokenized again.
            self._rows[-1].extra_fields = last.extra_fields
            return self._rows
        return [*self._rows, last] if self._rows else last

    async def _handle_pending_state(self, agent_data: AgentData, sampling_params: SamplingParams) -> AgentState:
        state = await super()._handle_pending_state(agent_data, sampling_params)
        self._num_prompt_tokens = len(agent_data.prompt_ids)
        return state

    async def _handle_generating_state(
        self, agent_data: AgentData, sampling_params: SamplingParams, ignore_termination: bool = False
    ) -> AgentState:
        if self.use_inference_chat_template:
            await self._rebuild_context(agent_data)
        room = self._num_prompt_tokens + self.response_length - len(agent_data.prompt_ids)
        if room <= 0:
            self._set_stop_reason("max_tokens", "no room for a response")
            return AgentState.TERMINATED
        num_messages = len(agent_data.messages)
        state = await super()._handle_generating_state(
            agent_data, {**sampling_params, "max_tokens": room}, ignore_termination
        )
        if state is AgentState.TERMINATED:
            if len(agent_data.messages) == num_messages:
                await self._add_last_message(agent_data)
            self._record_end(agent_data, room)
            self._check_tokenization(agent_data)
        return state

    async def _handle_processing_tools_state(self, agent_data: AgentData) -> AgentState:
        tokens = agent_data.prompt_ids, agent_data.response_mask, agent_data.response_logprobs
        lengths, num_messages = [len(part) for part in tokens], len(agent_data.messages)
        state = await super()._handle_processing_tools_state(agent_data)
        if state is AgentState.TERMINATED:
            # The policy does not read results that do not fit.
            del agent_data.messages[num_messages:]
            for part, length in zip(tokens, lengths, strict=True):
                del part[length:]  # type: ignore[attr-defined]
            self._set_stop_reason("max_tokens", "no room for what the tools answered")
            self._check_tokenization(agent_data)
        return state

    def _build_assistant_message(self, content: str, agent_data: AgentData) -> Message:
        """Return the message without the end-of-turn token, which the chat template adds itself."""
        end = self.tokenizer.eos_token
        return super()._build_assistant_message(content.removesuffix(end) if end else content, agent_data)

    async def ct_build_initial_tokens(
        self,
        messages: Sequence[Message],
        tools: Sequence[object] | None = None,
        images: Sequence[object] | None = None,
        **media: object,
    ) -> list[int]:
        """Return the tokens of a prompt, cut on the left to `prompt_length`."""
        if images or any(media.values()) or not _are_short([message.get("content") for message in messages]):
            return await super().ct_build_initial_tokens(messages, tools=tools, images=images, **media)  # type: ignore[call-arg]
        ids = self.continuous_token_builder.build_initial_tokens(messages, tools=tools, images=images)
        return list(self._cap_text_prompt_length(ids))  # type: ignore[attr-defined]

    async def ct_merge_assistant_token(
        self,
        runtime_token_ids: list[int],
        assistant_token_ids: Sequence[int],
        response_mask: list[int],
        response_logprobs: list[float] | None = None,
        assistant_logprobs: Sequence[float] | None = None,
    ) -> tuple[MergeResult, list[int], list[float] | None]:
        """Append a response to the context."""
        num_log_probs = len(assistant_token_ids) if response_logprobs is not None else 0
        if self._appender is None or len(assistant_logprobs or ()) != num_log_probs:
            return await super().ct_merge_assistant_token(
                runtime_token_ids, assistant_token_ids, response_mask, response_logprobs, assistant_logprobs
            )
        result = self._appender.add_response(
            runtime_token_ids, response_mask, response_logprobs, assistant_token_ids, assistant_logprobs
        )
        CURRENT_EPISODE.get().extended_in_place(runtime_token_ids)
        return result, response_mask, response_logprobs

    async def ct_merge_context_msg(
        self,
        previous_messages: Sequence[Message],
        updated_messages: Sequence[Message],
        runtime_token_ids: list[int],
        response_mask: list[int],
        response_logprobs: list[float] | None = None,
        tools: Sequence[object] | None = None,
    ) -> tuple[MergeResult, list[int], list[float] | None]:
        """Append what tools answered to the context."""
        messages = updated_messages[len(previous_messages) :]
        texts = [message["content"] for message in messages if message["role"] == "tool"]
        if self._appender is None or tools is None or len(texts) < len(messages) or not _are_short(texts):
            return await super().ct_merge_context_msg(
                previous_messages, updated_messages, runtime_token_ids, response_mask, response_logprobs, tools
            )
        result = self._appender.add_results(runtime_token_ids, response_mask, response_logprobs, messages, tools)
        return result, response_mask, response_logprobs

    # ---- the end ----

    async def _add_last_message(self, agent_data: AgentData) -> None:
        """Add a response that a limit ended to the messages, which verl does not."""
        tools = [tool.tool_schema for tool in agent_data._active_tools.values()]
        content, agent_data.tool_calls = await self.tool_parser.extract_tool_calls(agent_data.response_ids, tools)
        agent_data.messages.append(self._build_assistant_message(content, agent_data))

    def _record_end(self, agent_data: AgentData, room: int) -> None:
        ids, ends = agent_data.response_ids, {self.tokenizer.eos_token_id}
        # A tool call at the limit leaves no room for its result.
        if is_truncated(ids, max_tokens=room, stop_token_ids=() if agent_data.tool_calls else ends):
            self._set_stop_reason("max_tokens", "max_response_length")
        elif agent_data.tool_calls and agent_data.assistant_turns == self.max_assistant_turns:
            self._set_stop_reason("max_turns", "max_assistant_turns")
        elif agent_data.tool_calls and agent_data.user_turns == self.max_user_turns:
            self._set_stop_reason("max_turns", "max_user_turns")
        else:
            self._set_stop_reason("completed", "no tool call")

    def _set_stop_reason(self, reason: StopReason, detail: str) -> None:
        episode = CURRENT_EPISODE.get()
        episode.stop_reason, episode.stop_detail = reason, detail

    # ---- the context ----

    async def _rebuild_context(self, agent_data: AgentData) -> None:
        """Replace the context by the chat template's tokens of the messages if they differ from those sampled."""
        if not agent_data.response_mask:
            return
        template_ids = await asyncio.to_thread(
            self.continuous_token_builder.build_initial_tokens,
            agent_data.messages,
            tools=agent_data._active_tool_schemas,
            images=agent_data.image_data,
        )
        if template_ids == agent_data.prompt_ids:
            return
        self._rows.append(self._row(agent_data))
        agent_data.prompt_ids = template_ids
        agent_data.response_mask, agent_data.response_logprobs = [], []

    def _row(self, agent_data: AgentData) -> AgentLoopOutput:
        """Return the current row up to its last response; later tool results are in no row."""
        num_trained = max(position for position, trained in enumerate(agent_data.response_mask) if trained) + 1
        start = len(agent_data.prompt_ids) - len(agent_data.response_mask)
        return AgentLoopOutput(
            prompt_ids=agent_data.prompt_ids[:start],
            response_ids=agent_data.prompt_ids[start : start + num_trained],
            response_mask=agent_data.response_mask[:num_trained],
            response_logprobs=agent_data.response_logprobs[:num_trained] or None,
            multi_modal_data=self._images_in(agent_data.image_data, agent_data.prompt_ids[: start + num_trained]),
            num_turns=agent_data.user_turns + agent_data.assistant_turns + 1,
            metrics=AgentLoopMetrics(),
        )

    def _images_in(self, images: Sequence[object] | None, ids: Sequence[int]) -> dict[str, object]:
        """Return the images whose placeholders are among the tokens."""
        if not images:
            return {}
        return {"images": list(images[: num_runs(ids, get_processor_token_id(self.processor, "image"))])}

    # ---- the chat template ----

    def _check_tokenization(self, agent_data: AgentData) -> None:
        """Warn if the chat template tokenizes the episode differently."""
        if self.sanity_check == "disable":
            return
        episode = CURRENT_EPISODE.get()
        context = episode.context_text(len(agent_data.prompt_ids))
        if context is None:
            context = self.tokenizer.decode(agent_data.prompt_ids, skip_special_tokens=False)
        compare_whitespace = self.sanity_check == "strict"
        difference = None
        # Few texts differ, and to tokenize a whole conversation takes longer than all else here.
        if self.processor is not None or find_difference(
            self._template_text(agent_data), context, compare_whitespace=compare_whitespace
        ):
            template = self._template_text_of_tokens(agent_data)
            difference = find_difference(template, context, compare_whitespace=compare_whitespace)
        episode.metrics.put("tokenization_differences", float(difference is not None))
        if difference is not None:
            log.warning(
                "Inconsistent training and inference tokenization detected (%s): the chat template tokenizes the "
                "messages of a trajectory differently. The tokens are trained as they were sampled; look at the "
                "template if this is not intended.",
                self.sanity_check,
                extra={"trajectory": episode.name, "template": difference.template, "tokens": difference.tokens},
            )

    def _template_text(self, agent_data: AgentData) -> str:
        """Return the messages in the chat template, before it is tokenized."""
        builder = self.continuous_token_builder
        return apply_chat_template(
            self.tokenizer,
            agent_data.messages,
            tokenize=False,
            add_generation_prompt=False,
            tools=agent_data._active_tool_schemas,
            **builder.chat_template_kwargs,
        )

    def _template_text_of_tokens(self, agent_data: AgentData) -> str:
        """Return the text of the tokens of the messages in the chat template."""
        builder, schemas = self.continuous_token_builder, agent_data._active_tool_schemas
        if agent_data.image_data:
            ids = builder.render_tokens_with_mm(
                agent_data.messages, agent_data.image_data, add_generation_prompt=False, tools=schemas
            )
        else:
            ids = builder._render_tokens(agent_data.messages, add_generation_prompt=False, tools=schemas)
        return self.tokenizer.decode(ids, skip_special_tokens=False)


def _are_short(texts: Sequence[object]) -> bool:
    """Return whether contents of messages are texts, and few enough to be tokenized in the loop itself."""
    lengths = [len(text) for text in texts if isinstance(text, str)]
    return len(lengths) == len(texts) and sum(lengths) <= MAX_CHARACTERS
