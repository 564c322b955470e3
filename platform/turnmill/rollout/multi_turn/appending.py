"""Appends responses and tool results to a context, without reading what stands in it.

verl's builder copies the context with its response mask and log-probs for each message, renders the chat template
twice, and does both in threads. The tokens are the same here, but the cost of a turn does not grow with the context.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from turnmill.rollout.multi_turn.verl_classes import (
    SYNTHETIC_MESSAGES,
    ContinuousTokenBuilder,
    MergeResult,
    QwenContinuousTokenBuilder,
    apply_chat_template,
)
from turnmill.rollout.texts import text_encoder
from turnmill.rollout.verl_types import Message, Tokenizer

_EXTENDABLE = (ContinuousTokenBuilder, QwenContinuousTokenBuilder)
"""Builders that look at no more than the last token of a context to which they append."""

_MAX_BEGINNINGS = 64
"""Rendered chats that are kept: one for each set of tools and number of calls."""


@dataclass(frozen=True, slots=True)
class _Beginning:
    """A short chat that ends with a call of tools."""

    messages: Sequence[Message]
    tools: Sequence[object]
    text: str


class ContextAppender:
    """Appends to the lists of a context themselves."""

    def __init__(self, builder: ContinuousTokenBuilder, tokenizer: Tokenizer) -> None:
        self._builder = builder
        self._tokenizer = tokenizer
        self._encode = text_encoder(tokenizer)
        self._specials = tuple(
            token.content
            for token in tokenizer.added_tokens_decoder.values()
            if token.special and not (token.lstrip or token.rstrip or token.single_word or token.normalized)
        )
        self._beginnings: dict[object, _Beginning] = {}

    @classmethod
    def of(cls, builder: object, tokenizer: Tokenizer) -> "ContextAppender | None":
        """Return the appender that does as a builder does; None if that one changes what stands in a context."""
        if isinstance(builder, ContinuousTokenBuilder) and type(builder) in _EXTENDABLE:
            return cls(builder, tokenizer)
        return None

    def add_response(
        self, ids: list[int], mask: list[int], log_probs: list[float] | None, new_ids: Sequence[int],
        new_log_probs: Sequence[float] | None,
    ) -> MergeResult:  # fmt: skip
        """Append a response to tokens, response mask and log-probs; returns verl's description of it."""
        ids.extend(new_ids)
        mask.extend([1] * len(new_ids))
        if log_probs is not None:
            log_probs.extend(new_log_probs or ())
        return MergeResult(token_ids=ids, appended_token_count=len(new_ids), kind="assistant")

    def add_results(
        self, ids: list[int], mask: list[int], log_probs: list[float] | None, messages: Sequence[Message],
        tools: Sequence[object],
    ) -> MergeResult:  # fmt: skip
        """Append the messages of tools to a response, and the beginning of the next; returns verl's description."""
        merged = self._builder._merge_context_token_ids(ids[-1:], self._result_ids(messages, tools))
        new_ids = merged.token_ids[1:]
        ids.extend(new_ids)
        mask.extend([0] * len(new_ids))
        if log_probs is not None:
            log_probs.extend([0.0] * len(new_ids))
        return MergeResult(
            token_ids=ids,
            appended_token_count=merged.appended_token_count,
            kind="context",
            inserted_token_ids=merged.inserted_token_ids,
        )

    def _result_ids(self, messages: Sequence[Message], tools: Sequence[object]) -> list[int]:
        """Return the tokens of tools' messages after any response: those that the template adds to a short chat."""
        beginning = self._beginning(messages, tools)
        length = len(beginning.text)
        text = self._render([*beginning.messages, *messages], tools, add_generation_prompt=True)
        # Before a special token, a text can be cut without changing the tokens of either part.
        if not (text.startswith(beginning.text) and text.startswith(self._specials, length)):
            return self._builder._tokenize_tool_group(
                messages, previous_messages=(), tools=tools, add_generation_prompt=True
            )
        return self._encode(text[length:])

    def _beginning(self, messages: Sequence[Message], tools: Sequence[object]) -> _Beginning:
        """Return the chat that stands before tools' messages."""
        # The schemas are kept, so that no others can have their address.
        key = id(tools), *((message.get("name"), message.get("tool_call_id")) for message in messages)
        if key not in self._beginnings:
            if len(self._beginnings) >= _MAX_BEGINNINGS:
                self._beginnings.clear()
            chat = [*SYNTHETIC_MESSAGES, self._builder._synthetic_assistant_for_tools(messages)]
            text = self._render(chat, tools, add_generation_prompt=False)
            self._beginnings[key] = _Beginning(chat, tools, text)
        return self._beginnings[key]

    def _render(self, messages: Sequence[Message], tools: Sequence[object], *, add_generation_prompt: bool) -> str:
        return apply_chat_template(
            self._tokenizer,
            messages,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            **self._builder.chat_template_kwargs,
        )
