"""Prompts of conversations: rendered whole at their beginning, and from then on only what is added."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import jinja2
import numpy as np
from numpy.typing import NDArray

from turnmill.gateway.errors import RequestError
from turnmill.gateway.messages import END_OF_REASONING, JsonObject, Message, ReasoningPlace

MARK = "TURNMILLENDOFANSWER"
"""Stands for an answer whose tokens are recorded: what a template renders after it is what follows that answer."""

REASONING_MARK = "TURNMILLREASONING"
"""Stands for the reasoning of an answer: a template that renders none of it would rewrite the conversation."""

QUESTION: Message = {"role": "user", "content": "?"}
ANSWERS: Mapping[ReasoningPlace, Message] = {
    "": {"role": "assistant", "content": MARK},
    "field": {"role": "assistant", "reasoning_content": REASONING_MARK, "content": MARK},
    "content": {"role": "assistant", "content": f"<think>\n{REASONING_MARK}\n{END_OF_REASONING}\n\n{MARK}"},
}
"""What stands for an answer, by the place of its reasoning."""


class Tokenizer(Protocol):
    """A tokenizer of `transformers`."""

    eos_token_id: int

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        tools: object,
        add_generation_prompt: bool,
        tokenize: bool,
        **options: object,
    ) -> object:
        """Return the rendered messages."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the token ids of a text."""

    def decode(self, token_ids: NDArray[np.int64], *, skip_special_tokens: bool) -> str:
        """Return the text of token ids."""


class ContinuationError(Exception):
    """The chat template cannot render these messages apart from those before them."""


class ChatRenderer:
    """Renders and tokenizes messages with a model's chat template."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def opening(self, messages: Sequence[Message], tools: Sequence[JsonObject], template: JsonObject) -> list[int]:
        """Return the prompt of a whole conversation. Raises RequestError if the template refuses it."""
        try:
            text = self._render(messages, tools, template)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            raise RequestError(f"messages: the model's chat template refuses them: {error}") from error
        return self.tokenize(text)

    def continuation(
        self,
        messages: Sequence[Message],
        tools: Sequence[JsonObject],
        template: JsonObject,
        *,
        last_id: int,
        reasoning: ReasoningPlace = "",
    ) -> list[int]:
        """Return the tokens that follow an answer whose last token is `last_id`, up to the start of the next answer.

        Raises ContinuationError if the template needs the messages before, or drops `reasoning` that they have.
        """
        try:
            text = self._render([QUESTION, ANSWERS[reasoning], *messages], tools, template)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            raise ContinuationError(str(error)) from error
        _, found, rest = text.rpartition(MARK)
        if not found:
            raise ContinuationError("the template leaves the last answer out")
        if reasoning and REASONING_MARK not in text:
            raise ContinuationError("the template leaves the reasoning before these messages out")
        ids = self.tokenize(rest)
        # The template ends the answer, where the policy has done so already.
        return ids[1:] if ids[:1] == [last_id] else ids

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of rendered text."""
        return self._tokenizer.encode(text, add_special_tokens=False)

    def text_of(self, token_ids: Sequence[int], *, special: bool = False) -> str:
        """Return the text of tokens, with special tokens if asked for."""
        # Of a list, it would look at the type of each.
        return self._tokenizer.decode(np.array(token_ids, dtype=np.int64), skip_special_tokens=not special)

    def _render(self, messages: Sequence[Message], tools: Sequence[JsonObject], template: JsonObject) -> str:
        text = self._tokenizer.apply_chat_template(
            messages, tools=list(tools) or None, add_generation_prompt=True, tokenize=False, **template
        )
        assert isinstance(text, str)
        return text
