"""A policy with random weights, for programs that say much."""

import math
from collections.abc import Iterable
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from support.gateway import merged_bytes


def write_policy(folder: Path, texts: Iterable[str], *, context: int) -> None:
    """Write a policy with random weights that ends its answer after each token with a chance of about a quarter.

    Its tokenizer merges what is frequent in `texts`; its chat template is like Qwen's.
    """
    tokenizer = merged_bytes(texts, vocabulary=8192)
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(folder)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=context, tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        # The first dimension is the same everywhere, 8 after the norm: it makes the end token likely.
        model.get_input_embeddings().weight[:, 0] = 1
        model.get_output_embeddings().weight[:, 0] = 0
        model.get_output_embeddings().weight[tokenizer.eos_token_id, 0] = math.log(len(tokenizer) / 3) / 8
    model.save_pretrained(folder)
