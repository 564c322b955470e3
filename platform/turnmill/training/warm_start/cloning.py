"""Behaviour cloning of a tiny Qwen2 model. Axes: B rows, T tokens, A answer tokens of the batch, V vocabulary."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from turnmill.jobs.model import WarmStart
from turnmill.training.warm_start.tokenizer import END_ID, PAD_ID

Progress = Callable[[int, int, float], None]
"""Told after every gradient step: steps done, steps expected, smoothed loss."""

WARMUP_STEPS = 30
BATCHES_SORTED_TOGETHER = 16
SMOOTHING = 0.9


@dataclass(frozen=True, slots=True)
class Row:
    """One demonstrated turn as token ids; the answer includes its end token."""

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]


def build_model(vocabulary: int, settings: WarmStart) -> Qwen2ForCausalLM:
    """A Qwen2 model of random weights, tied embeddings, float32."""
    torch.manual_seed(settings.seed)
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=settings.hidden_size,
        intermediate_size=3 * settings.hidden_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        pad_token_id=PAD_ID,
        eos_token_id=END_ID,
        bos_token_id=None,
        attn_implementation="sdpa",
        dtype="float32",
    )
    return Qwen2ForCausalLM(config)


def clone(model: Qwen2ForCausalLM, rows: Sequence[Row], settings: WarmStart, on_progress: Progress) -> float:
    """Train `model` on the answers of `rows`; returns the smoothed loss (nats per answer token) at the end."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=0.01, fused=True)
    batches = _batches(rows, settings)
    smoothed = math.nan
    for step in range(settings.gradient_steps):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * _schedule(step, settings.gradient_steps)
        loss = answer_loss(model, next(batches))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        smoothed = loss.item() if math.isnan(smoothed) else SMOOTHING * smoothed + (1 - SMOOTHING) * loss.item()
        on_progress(step + 1, settings.gradient_steps, smoothed)
    return smoothed


def answer_loss(model: Any, batch: Sequence[Row]) -> torch.Tensor:
    """Mean cross-entropy over the answer tokens of a batch."""
    lengths = [len(row.prompt_ids) + len(row.answer_ids) - 1 for row in batch]
    ids_BT = torch.full((len(batch), max(lengths)), PAD_ID)
    answers_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    for index, (row, length) in enumerate(zip(batch, lengths, strict=True)):
        ids_BT[index, :length] = torch.tensor(row.prompt_ids + row.answer_ids[:-1])
        answers_BT[index, len(row.prompt_ids) - 1 : length] = True
    targets_A = torch.tensor([token for row in batch for token in row.answer_ids])
    # Padding on the right is never looked at by a causal model, so no mask is needed.
    hidden_BTH = model.model(input_ids=ids_BT, use_cache=False).last_hidden_state
    return nn.functional.cross_entropy(model.lm_head(hidden_BTH[answers_BT]), targets_A)


def _schedule(step: int, steps: int) -> float:
    return min(1.0, (step + 1) / WARMUP_STEPS) * (1 - 0.9 * step / steps)


def _batches(rows: Sequence[Row], settings: WarmStart) -> Iterator[list[Row]]:
    """Batches without end; rows of one length come together, so that little is padded."""
    choice = random.Random(settings.seed)
    size = settings.batch_size
    while True:
        drawn = choice.choices(rows, k=size * BATCHES_SORTED_TOGETHER)
        drawn.sort(key=lambda row: len(row.prompt_ids) + len(row.answer_ids))
        batches = [drawn[start : start + size] for start in range(0, len(drawn), size)]
        choice.shuffle(batches)
        yield from batches
