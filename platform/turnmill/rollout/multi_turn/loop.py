"""verl's loop of tools, with the settings that verl documents and reads no more."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.experimental.agent_loop.tool_agent_loop import AgentData, AgentState, ToolAgentLoop
from verl.utils.tokenizer import get_processor_token_id

from turnmill.rollout.generation import is_truncated
from turnmill.rollout.multi_turn.episode import CURRENT
from turnmill.rollout.multi_turn.tokenization_check import difference

log = logging.getLogger(__name__)


class MultiTurnLoop(ToolAgentLoop):
    """Tells why it ends, compares its tokens with the chat template, and reads as inference does if told to."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = self.rollout_config.multi_turn
        self.as_inference = bool(settings.use_inference_chat_template)
        self.sanity_check = str(settings.tokenization_sanity_check_mode)
        self._rows: list[AgentLoopOutput] = []
        self._num_prompt_tokens = 0

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        """Play a trajectory; it has several rows where its context was spelled anew."""
        last = await super().run(sampling_params, **row)
        if self._rows and not last.response_mask:
            # There was no room for a response after the context was spelled anew.
            self._rows[-1].extra_fields = last.extra_fields
            return self._rows
        return [*self._rows, last] if self._rows else last

    async def _handle_pending_state(self, agent_data: AgentData, sampling_params: dict[str, Any]) -> AgentState:
        state = await super()._handle_pending_state(agent_data, sampling_params)
        self._num_prompt_tokens = len(agent_data.prompt_ids)
        return state

    async def _handle_generating_state(
        self, agent_data: AgentData, sampling_params: dict[str, Any], ignore_termination: bool = False
    ) -> AgentState:
        if self.as_inference:
            await self._read_as_inference_does(agent_data)
        room = self._num_prompt_tokens + self.response_length - len(agent_data.prompt_ids)
        if room <= 0:
            self._end("max_tokens", "no room for a response")
            return AgentState.TERMINATED
        num_messages = len(agent_data.messages)
        state = await super()._handle_generating_state(
            agent_data, sampling_params | {"max_tokens": room}, ignore_termination
        )
        if state is AgentState.TERMINATED:
            if len(agent_data.messages) == num_messages:
                await self._add_last_message(agent_data)
            self._tell_why(agent_data, room)
            self._compare(agent_data)
        return state

    async def _handle_processing_tools_state(self, agent_data: AgentData) -> AgentState:
        num_messages = len(agent_data.messages)
        state = await super()._handle_processing_tools_state(agent_data)
        if state is AgentState.TERMINATED:
            # Nobody reads what does not fit.
            del agent_data.messages[num_messages:]
            self._end("max_tokens", "no room for what the tools answered")
            self._compare(agent_data)
        return state

    def _build_assistant_message(self, content: str, agent_data: AgentData) -> dict[str, Any]:
        """Without the end of the turn, which the chat template spells itself."""
        end = self.tokenizer.eos_token
        return super()._build_assistant_message(content.removesuffix(end) if end else content, agent_data)

    # ---- the end ----

    async def _add_last_message(self, agent_data: AgentData) -> None:
        """verl leaves a response out of the messages that a limit ends."""
        tools = [tool.tool_schema for tool in agent_data._active_tools.values()]
        content, agent_data.tool_calls = await self.tool_parser.extract_tool_calls(agent_data.response_ids, tools)
        agent_data.messages.append(self._build_assistant_message(content, agent_data))

    def _tell_why(self, agent_data: AgentData, room: int) -> None:
        ids, ends = agent_data.response_ids, {self.tokenizer.eos_token_id}
        # A call that fills the response finds no room for its answer.
        if is_truncated(ids, max_tokens=room, stop_token_ids=() if agent_data.tool_calls else ends):
            self._end("max_tokens", "max_response_length")
        elif agent_data.tool_calls and agent_data.assistant_turns == self.max_assistant_turns:
            self._end("max_turns", "max_assistant_turns")
        elif agent_data.tool_calls and agent_data.user_turns == self.max_user_turns:
            self._end("max_turns", "max_user_turns")
        else:
            self._end("completed", "no tool call")

    def _end(self, reason: Any, detail: str) -> None:
        conversation = CURRENT.get()
        conversation.stop_reason, conversation.detail = reason, detail

    # ---- what the policy reads ----

    async def _read_as_inference_does(self, agent_data: AgentData) -> None:
        """Where the chat template spells the messages otherwise than they came, go on from what it spells."""
        if not agent_data.response_mask:
            return
        spelled = await asyncio.to_thread(
            self.continuous_token_builder.build_initial_tokens,
            agent_data.messages,
            tools=agent_data._active_tool_schemas,
            images=agent_data.image_data,
        )
        if spelled == agent_data.prompt_ids:
            return
        self._rows.append(self._row(agent_data))
        agent_data.prompt_ids = spelled
        agent_data.response_mask, agent_data.response_logprobs = [], []

    def _row(self, agent_data: AgentData) -> AgentLoopOutput:
        """What was learned so far, after what was read for it; nothing is learned from what tools answered last."""
        num_learned = max(position for position, learned in enumerate(agent_data.response_mask) if learned) + 1
        start = len(agent_data.prompt_ids) - len(agent_data.response_mask)
        return AgentLoopOutput(
            prompt_ids=agent_data.prompt_ids[:start],
            response_ids=agent_data.prompt_ids[start : start + num_learned],
            response_mask=agent_data.response_mask[:num_learned],
            response_logprobs=agent_data.response_logprobs[:num_learned] or None,
            multi_modal_data=self._images_in(agent_data.image_data, agent_data.prompt_ids[: start + num_learned]),
            num_turns=agent_data.user_turns + agent_data.assistant_turns + 1,
            metrics=AgentLoopMetrics(),
        )

    def _images_in(self, images: Sequence[Any] | None, ids: Sequence[int]) -> dict[str, Any]:
        """Of all images, those that these tokens stand for."""
        if not images:
            return {}
        image = get_processor_token_id(self.processor, "image")
        runs = sum(1 for before, at in zip([None, *ids], ids, strict=False) if at == image != before)
        return {"images": list(images[:runs])}

    # ---- what the chat template makes of it ----

    def _compare(self, agent_data: AgentData) -> None:
        """Warn where the template would spell the trajectory otherwise."""
        if self.sanity_check == "disable":
            return
        builder = self.continuous_token_builder
        schemas = agent_data._active_tool_schemas
        if agent_data.image_data:
            whole = builder.render_tokens_with_mm(
                agent_data.messages, agent_data.image_data, add_generation_prompt=False, tools=schemas
            )
        else:
            whole = builder._render_tokens(agent_data.messages, add_generation_prompt=False, tools=schemas)
        decode = self.tokenizer.decode
        found = difference(
            decode(whole, skip_special_tokens=False),
            decode(agent_data.prompt_ids, skip_special_tokens=False),
            blanks_count=self.sanity_check == "strict",
        )
        conversation = CURRENT.get()
        conversation.figures.put("tokenization_differences", float(found is not None))
        if found is not None:
            log.warning(
                "Inconsistent training and inference tokenization detected (%s): the chat template spells the messages "
                "of a trajectory otherwise than its tokens do. Such tokens are trained as they were sampled; look at "
                "the template if this is not meant.",
                self.sanity_check,
                extra={"trajectory": conversation.name, "template": found.template, "tokens": found.tokens},
            )
