"""A tokenizer of whole words, whose chat template renders the prompts of the tiny model.

A word includes the space before it, so that a text survives the round trip through token ids exactly. transformers
loads the tokenizer of every Qwen2 model as byte-pair encoding with Qwen's own rules and ignores any other kind in the
folder; words are therefore kept as added tokens, which take precedence over those rules.
"""

import re
from collections.abc import Iterable

from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

PAD, END, SYSTEM, USER, ASSISTANT, UNKNOWN = "<|pad|>", "<|im_end|>", "<sys>", "<usr>", "<ast>", "<unk>"
SPECIAL_TOKENS = (PAD, END, SYSTEM, USER, ASSISTANT, UNKNOWN)
PAD_ID, END_ID = 0, 1
MAX_TOKENS = 4096

CHAT_TEMPLATE = (
    "{%- set marks = {'system': '" + SYSTEM + "', 'user': '" + USER + "', 'tool': '" + USER + "', 'assistant': '"
    "" + ASSISTANT + "'} -%}"
    "{%- for message in messages -%}{{- marks[message['role']] + message['content'] -}}"
    "{%- for call in message.tool_calls or [] -%}{{- '<tool_call>' + call.function | tojson + '</tool_call>' -}}"
    "{%- endfor -%}{{- '" + END + "' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '" + ASSISTANT + "' -}}{%- endif -%}"
)

_WORD = re.compile(r"\n| ?[^ \n]+| ")


def split_words(text: str) -> list[str]:
    """Split a text into words, which joined give it back; a newline is a word of its own."""
    return _WORD.findall(text)


def build_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Build a tokenizer of every word in `texts`, in alphabetical order after the special tokens."""
    words = sorted({word for text in texts for word in split_words(text)})
    tokenizer = Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate((*SPECIAL_TOKENS, *words))},
        merges=[],
        pad_token=PAD,
        eos_token=END,
        unk_token=UNKNOWN,
        extra_special_tokens=[SYSTEM, USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_TOKENS,
    )
    tokenizer.add_tokens([AddedToken(word, normalized=False, special=False) for word in words])
    return tokenizer
