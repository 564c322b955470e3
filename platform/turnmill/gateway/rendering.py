"""Prompts of conversations: rendered whole at their beginning, and from then on only what is added."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import jinja2
import numpy as np
from numpy.typing import NDArray

from turnmill.gateway.errors import RequestError
from turnmill.gateway.messages import END_OF_REASONING, JsonObject, Message, ReasoningPlace, pictures_in
from turnmill.gateway.picture_tokens import PictureTokenizer, Processor, collapsed
from turnmill.gateway.pictures import Picture

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

    def __init__(self, tokenizer: Tokenizer, processor: Processor | None = None) -> None:
        """Take the processor of a model that reads pictures."""
        self._tokenizer = tokenizer
        has_eyes = getattr(processor, "image_token_id", None) is not None
        self._pictures = PictureTokenizer(processor) if processor is not None and has_eyes else None
        template = getattr(processor, "chat_template", None)
        self._template = {"chat_template": template} if isinstance(template, str) else {}

    @property
    def image_id(self) -> int | None:
        """Return the placeholder of pictures; None if the model reads text alone."""
        return self._pictures.image_id if self._pictures is not None else None

    @property
    def placeholder_ids(self) -> frozenset[int]:
        """Return the tokens that stand for pictures and other media, which a policy must not generate."""
        return self._pictures.placeholder_ids if self._pictures is not None else frozenset()

    def opening(self, messages: Sequence[Message], tools: Sequence[JsonObject], template: JsonObject) -> list[int]:
        """Return the prompt of a whole conversation. Raises RequestError if the template refuses it."""
        try:
            text = self._render(messages, tools, template)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
            raise RequestError(f"messages: the model's chat template refuses them: {error}") from error
        return self.tokenize(text, pictures_in(messages))

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
        ids = self.tokenize(rest, pictures_in(messages))
        # The template ends the answer, where the policy has done so already.
        return ids[1:] if ids[:1] == [last_id] else ids

    def tokenize(self, text: str, pictures: Sequence[Picture] = ()) -> list[int]:
        """Return the token ids of rendered text, with those of its pictures.

        Raises RequestError for pictures that cannot be read, or that the model does not read.
        """
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        if self._pictures is not None:
            return self._pictures.expanded(ids, pictures)
        if pictures:
            raise RequestError(
                f"messages: the conversation has pictures ({len(pictures)}), and this model reads text alone: "
                "send text, or use a multi-modal model."
            )
        return ids

    def text_of(self, token_ids: Sequence[int], *, special: bool = False) -> str:
        """Return the text of tokens, with special tokens if asked for, of which a picture has one."""
        # Of a list, it would look at the type of each.
        ids = np.array(token_ids, dtype=np.int64) if self.image_id is None else collapsed(token_ids, self.image_id)
        return self._tokenizer.decode(ids, skip_special_tokens=not special)

    def _render(self, messages: Sequence[Message], tools: Sequence[JsonObject], template: JsonObject) -> str:
        text = self._tokenizer.apply_chat_template(
            [_for_template(message) for message in messages],
            tools=list(tools) or None,
            add_generation_prompt=True,
            tokenize=False,
            **{**self._template, **template},
        )
        assert isinstance(text, str)
        return text


def _for_template(message: Message) -> Message:
    content = message["content"]
    if type(content) is not list:
        return message
    return {**message, "content": [{"type": "image"} if "image" in part else part for part in content]}
