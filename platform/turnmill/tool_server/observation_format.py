"""Format of observations in completions, the same as in the training of agents of type `tool`."""

from collections.abc import Mapping

from turnmill.core.observations import (
    INVALID_ACTION_NOTICE,
    MARKER,
    rendered_separator,
    separator_messages,
    split_separator,
    truncate_observation,
)
from turnmill.tool_server.call_result import CallResult
from turnmill.tool_server.settings import ServerSettings
from turnmill.tool_server.upstream import Messages, Upstream

TEMPLATE_FIELDS = frozenset({"chat_template", "chat_template_kwargs", "tools"})
"""Fields of a request for the chat template."""


class ObservationFormat:
    """Truncates observations and wraps them in chat turns, with the tokenizer of the model server."""

    def __init__(self, settings: ServerSettings, upstream: Upstream) -> None:
        self._settings = settings
        self._upstream = upstream
        self._chat_turn: tuple[str, str] | None = None

    async def prompt(
        self, prompt: str | Messages, sampling: Mapping[str, object]
    ) -> tuple[str | Messages, Mapping[str, object]]:
        """Return the prompt to continue, with the fields to send for it.

        With chat turns in the completion, a conversation is rendered once and continued as text: a chat template would
        change earlier turns, for example drop their reasoning.
        """
        if not self._settings.enable_mtrl or isinstance(prompt, str):
            return prompt, sampling
        template = {name: value for name, value in sampling.items() if name in TEMPLATE_FIELDS}
        rest = {name: value for name, value in sampling.items() if name not in TEMPLATE_FIELDS}
        # The rendered text already has the tokens that open a text.
        return await self._upstream.render(prompt, template), {**rest, "add_special_tokens": False}

    async def after(self, response: str, result: CallResult) -> str:
        """Return the text after a response: the observation, in a chat turn if these are enabled."""
        observation = result.observation
        text = observation if isinstance(observation, str) else str(observation.get("obs", ""))
        if not self._settings.enable_mtrl:
            return await self._truncate(text)
        if self._chat_turn is None:
            self._chat_turn = await self._read_chat_turn()
        prefix, suffix = self._chat_turn
        notice = "" if result.valid else INVALID_ACTION_NOTICE
        turn_end = "" if response.endswith(self._settings.turn_end_token) else self._settings.turn_end_token
        return turn_end + prefix + await self._truncate(notice + text) + suffix

    async def _truncate(self, text: str) -> str:
        limit, side = self._settings.max_obs_length, self._settings.truncate_obs_side
        if limit is None:
            limit = self._settings.max_obs_characters
            kept = truncate_observation(range(len(text)), limit, side)
            return "".join(text[position] for position in (*kept.head, *kept.tail))
        kept = truncate_observation(await self._upstream.tokenize(text), limit, side)
        if kept.is_whole:
            return text
        before, after = MARKER[side]
        head, tail = await self._upstream.detokenize(kept.head), await self._upstream.detokenize(kept.tail)
        return before + tail if side == "left" else head + after + tail

    async def _read_chat_turn(self) -> tuple[str, str]:
        separator = self._settings.mtrl_sep
        if separator is None:
            separator = rendered_separator(
                await self._upstream.render(separator_messages(self._settings.mtrl_role), {})
            )
        return split_separator(separator, self._settings.turn_end_token, name="--mtrl-sep")
