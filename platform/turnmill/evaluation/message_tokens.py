"""Tokens for endpoints that take messages: agent loops work with tokens, from which the messages are restored.

A conversation is its messages as JSON, and responses and observations as they are, one token per byte. Between them are
control characters that JSON does not have, so nothing is lost in either direction.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from turnmill.core.errors import SettingsError

Message: TypeAlias = dict[str, object]

TOOLS, MESSAGE, RESPONSE, ROLE, CONTENT, END = MARKS = "\x01", "\x02", "\x03", "\x04", "\x1f", "\x06"
"""Tokens before the schemas of tools, a message, a response, and an observation's role and text, and after the last
three."""

CHAT_TEMPLATE = (
    f"{{%- if tools -%}}{{{{- '{TOOLS}' + (tools | tojson) -}}}}{{%- endif -%}}"
    f"{{%- for message in messages -%}}{{{{- '{MESSAGE}' + (message | tojson) -}}}}{{%- endfor -%}}"
    f"{{%- if add_generation_prompt -%}}{{{{- '{RESPONSE}' -}}}}{{%- endif -%}}"
)

_BYTES = {byte: number for number, byte in enumerate(bytes_to_unicode(), start=len(MARKS))}
_TOKENS = {token: byte for byte, token in _BYTES.items()}


@dataclass(frozen=True, slots=True)
class Conversation:
    """What an endpoint gets of a conversation."""

    messages: list[Message]
    tools: list[object]
    """Schemas of tools."""


class MessageTokenizer(PreTrainedTokenizerFast):
    """A tokenizer whose conversations can be turned back into messages."""

    @classmethod
    def create(cls) -> "MessageTokenizer":
        """Return the tokenizer, which needs no files."""
        characters = bytes_to_unicode()
        vocabulary = {mark: number for number, mark in enumerate(MARKS)}
        vocabulary |= {characters[byte]: number for byte, number in _BYTES.items()}
        tokens = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
        tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokens.decoder = decoders.ByteLevel()
        return cls(
            tokenizer_object=tokens,
            eos_token=END,
            pad_token=END,
            extra_special_tokens=[mark for mark in MARKS if mark != END],
            chat_template=CHAT_TEMPLATE,
            clean_up_tokenization_spaces=False,
        )

    def conversation(self, prompt_ids: Sequence[int]) -> Conversation:
        """Return the messages of a prompt, without empty responses, which APIs refuse.

        Raises SettingsError for a prompt that ends with the beginning of a response.
        """
        messages: list[Message] = []
        tools: list[object] = []
        role = ""
        parts = list(_parts(prompt_ids))
        for mark, text in parts:
            if mark == TOOLS:
                tools = json.loads(text)
            elif mark == MESSAGE:
                messages.append(json.loads(text))
            elif mark == ROLE:
                role = text
            elif mark == CONTENT:
                messages.append({"role": role, "content": text})
            elif mark == RESPONSE and text:
                messages.append({"role": "assistant", "content": text})
        if not parts or parts[-1] != (RESPONSE, ""):
            raise SettingsError(
                "The agent goes on with a response that has begun, and a chat endpoint begins another. Give the folder "
                "of the model, or of its tokenizer with --tokenizer if vLLM serves it."
            )
        return Conversation(messages, tools)

    def response_ids(self, text: str, *, ended: bool) -> list[int]:
        """Return the tokens of a response; one that was cut off at its limit has no end."""
        tokens = [_BYTES[byte] for byte in text.encode(errors="replace")]
        return [*tokens, self.eos_token_id] if ended else tokens


def _parts(ids: Sequence[int]) -> Iterator[tuple[str, str]]:
    """Yield the marks, each with the text after it; a limit may have cut through a character, which is left out."""
    places = [place for place, token in enumerate(ids) if token < len(MARKS)]
    for place, end in zip(places, [*places[1:], len(ids)], strict=True):
        text = bytes(_TOKENS[token] for token in ids[place + 1 : end])
        yield MARKS[ids[place]], text.decode(errors="ignore")
