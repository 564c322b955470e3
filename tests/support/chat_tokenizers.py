"""Byte-level tokenizers with chat templates like those of common models."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

START, END, PAD = "<|start|>", "<|end|>", "<|pad|>"

PLAIN = (
    "{% if tools %}{{ '<|start|>tools\n' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    "{{ '<|end|>\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|start|>' + message.role + '\n' + message.content }}"
    "{% for call in message.tool_calls or [] %}{{ '<call>' + call.function | tojson + '</call>' }}{% endfor %}"
    "{{ '<|end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)
"""Every message alike, and a line break after its end."""

DROPS_REASONING = (
    "{% set last = messages | selectattr('role', 'equalto', 'user') | list | length %}{% set seen = namespace(n=0) %}"
    "{% for message in messages %}{% if message.role == 'user' %}{% set seen.n = seen.n + 1 %}{% endif %}"
    "{{ '<|start|>' + message.role + '\n' }}"
    "{{ message.content if seen.n == last else message.content.split('</think>')[-1] }}"
    "{{ '<|end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)
"""Reasoning is left in answers to the last message of the user alone."""

REWRITES = (
    "{% for message in messages %}{{ message.role + (messages | length | string) + message.content }}{% endfor %}"
)
"""Everything changes with every message."""


def byte_level_tokenizer(template: str | None = PLAIN) -> PreTrainedTokenizerFast:
    """Return a tokenizer whose words are merges of bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = [AddedToken(text, special=True) for text in (PAD, START, END)]
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["assistant user system tool what is the sum of one and two"] * 8, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, chat_template=template)
