"""Tokens for endpoints that take messages: agent loops work with tokens, from which the messages are restored.

A prompt is its messages as JSON, one token per byte; nothing is lost in either direction.
"""

import json
from collections.abc import Sequence

from openai.types.chat import ChatCompletionMessageParam
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END = "<|end|>"
CHAT_TEMPLATE = "{%- for message in messages -%}{{- message | tojson -}}{%- endfor -%}"


class MessageTokenizer(PreTrainedTokenizerFast):
    """A tokenizer whose prompts can be turned back into messages."""

    @classmethod
    def create(cls) -> "MessageTokenizer":
        """Return the tokenizer, which needs no files."""
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocabulary = {END: 0} | {character: number for number, character in enumerate(alphabet, start=1)}
        tokens = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
        tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokens.decoder = decoders.ByteLevel()
        return cls(
            tokenizer_object=tokens,
            eos_token=END,
            pad_token=END,
            chat_template=CHAT_TEMPLATE,
            clean_up_tokenization_spaces=False,
            # A text that contains the end is no end.
            split_special_tokens=True,
        )

    def messages(self, prompt_ids: Sequence[int]) -> list[ChatCompletionMessageParam]:
        """Return the messages of a prompt."""
        text, decoder = self.decode(prompt_ids), json.JSONDecoder()
        found: list[ChatCompletionMessageParam] = []
        while text:
            message, end = decoder.raw_decode(text)
            found.append(message)
            text = text[end:]
        return found

    def response_ids(self, text: str, *, ended: bool) -> list[int]:
        """Return the tokens of a response; one that was cut off at its limit has no end."""
        tokens: list[int] = self.encode(text, add_special_tokens=False)
        return [*tokens, self.eos_token_id] if ended else tokens
