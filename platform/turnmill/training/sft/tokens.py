"""Conversations as the chat template's tokens, with 1 in the mask on those of answers that are learned from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypedDict

from jinja2 import TemplateError

from turnmill.core.errors import SettingsError
from turnmill.training.sft.conversations import Conversation, Message


class Encoding(TypedDict):
    """A text as tokens, and the place of each in the text."""

    input_ids: list[int]
    offset_mapping: list[tuple[int, int]]


class ChatTokenizer(Protocol):
    """Methods of transformers' tokenizers for chats."""

    eos_token_id: int

    def apply_chat_template(
        self, conversation: Sequence[Message], *, tools: object, add_generation_prompt: bool, tokenize: bool
    ) -> str: ...

    def __call__(self, text: str, *, add_special_tokens: bool, return_offsets_mapping: bool) -> Encoding: ...


@dataclass(frozen=True, slots=True)
class TokenRow:
    """Token ids of a row, and 1 for each token that is learned."""

    ids: tuple[int, ...]
    mask: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Answer:
    """A conversation rendered up to the end of an answer, and the place in this text where the answer begins."""

    text: str
    start: int


def conversation_rows(conversation: Conversation, tokenizer: ChatTokenizer) -> Iterator[TokenRow]:
    """Yield the rows of a conversation: one, if the template renders earlier answers as it did when they were last.

    Some templates drop the reasoning of earlier answers. What the policy wrote is then in a row of its own, after the
    context that it saw. Raises SettingsError if the template refuses the messages.
    """
    left = [_answer(conversation, number, tokenizer) for number in conversation.learned]
    while left:
        text = left[-1].text
        inside = [answer for answer in left if text.startswith(answer.text)]
        left = [answer for answer in left if not text.startswith(answer.text)]
        yield _row(text, [(answer.start, len(answer.text)) for answer in inside], tokenizer)


def _answer(conversation: Conversation, number: int, tokenizer: ChatTokenizer) -> _Answer:
    """Render an answer. It begins where the text departs from the prompt for it, such as `<|im_start|>assistant`."""
    before, whole = conversation.messages[:number], conversation.messages[: number + 1]
    try:
        text = _render(conversation, whole, tokenizer)
        asked = _render(conversation, before, tokenizer, prompt=True) if before else ""
        given = _render(conversation, before, tokenizer) if before else ""
    except (TemplateError, TypeError) as error:
        raise SettingsError(
            f"{conversation.location} is refused by the model's chat template: {error}. Correct it, or take it out."
        ) from error
    start = next((n for n, (a, b) in enumerate(zip(asked, text, strict=False)) if a != b), min(len(asked), len(text)))
    if start < len(given.rstrip()):
        raise SettingsError(
            f"{conversation.location} is rendered otherwise by the model's chat template before message {number + 1} "
            "than with it. Split the conversation there."
        )
    return _Answer(text, start)


def _render(
    conversation: Conversation, messages: Sequence[Message], tokenizer: ChatTokenizer, *, prompt: bool = False
) -> str:
    return tokenizer.apply_chat_template(
        list(messages), tools=list(conversation.tools) or None, add_generation_prompt=prompt, tokenize=False
    )


def _row(text: str, spans: Sequence[tuple[int, int]], tokenizer: ChatTokenizer) -> TokenRow:
    """Tokenize a text whose answers are at these places."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, places = encoded["input_ids"], encoded["offset_mapping"]
    mask = [0] * len(ids)
    for start, end in spans:
        inside = [n for n, (first, last) in enumerate(places) if start <= first < last <= end]
        # What a template writes after the end of an answer, such as a line break, is never generated.
        ends = [n for n in inside if ids[n] == tokenizer.eos_token_id]
        for n in inside:
            mask[n] = int(not ends or n <= ends[-1])
    # No token predicts the first one.
    mask[:1] = [0] * len(mask[:1])
    return TokenRow(tuple(ids), tuple(mask))
