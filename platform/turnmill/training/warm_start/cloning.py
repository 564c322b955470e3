"""Behaviour cloning of a tiny Qwen2 model. Axes: B rows, T tokens, R response tokens of the batch,
K response tokens with a target distribution, V vocabulary."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM

from turnmill.core.errors import RunFailedError
from turnmill.jobs.model import WarmStart
from turnmill.training.warm_start.tokenizer import END_ID, MAX_TOKENS, PAD_ID

Progress = Callable[[int, int, float], None]
"""Called after every gradient step with the steps done, the steps expected and the smoothed loss."""

# Words are copied from the prompt by attention between alike tokens. With weights as small as Qwen2's own (0.02)
# it takes hundreds of steps to form; with these, about one hundred.
INITIAL_WEIGHT_STD = 0.06

WARMUP_STEPS = 30
DECAY_STEPS = 200
FINAL_RATE = 0.1
"""Share of the learning rate that is left at the end of the decay."""

PATIENCE = 2
"""Multiple of `gradient_steps` that is allowed if the loss falls late."""

SMOOTHING = 0.95
BATCHES_SORTED_TOGETHER = 16


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One demonstrated response as token ids, its end token included."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    targets: torch.Tensor
    """Target distributions of the last K response tokens, of shape (K, V); the tokens before them are certain."""


def build_model(vocabulary: int, settings: WarmStart) -> Qwen2ForCausalLM:
    """Return a Qwen2 model with random weights and tied embeddings, in float32."""
    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=settings.hidden_size,
        intermediate_size=3 * settings.hidden_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        initializer_range=INITIAL_WEIGHT_STD,
        max_position_embeddings=MAX_TOKENS,
        tie_word_embeddings=True,
        pad_token_id=PAD_ID,
        eos_token_id=END_ID,
        bos_token_id=None,
        attn_implementation="sdpa",
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return Qwen2ForCausalLM(config)


def clone(model: Qwen2ForCausalLM, rows: Sequence[Row], settings: WarmStart, on_progress: Progress) -> float:
    """Train `model` on the responses of `rows`; return the smoothed loss at the end, in nats per response token.

    The learning rate is constant until the loss is below `max_loss`, then decays. The loss decides when, because it
    stays high for long before it drops.

    Raises:
        RunFailedError: the loss never falls below `max_loss`.
    """
    with _one_thread():
        return _Cloning(model, rows, settings).run(on_progress)


class _Cloning:
    def __init__(self, model: Qwen2ForCausalLM, rows: Sequence[Row], settings: WarmStart) -> None:
        self.model = model
        self.settings = settings
        self.batches = _batches(rows, settings)
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.01, fused=True
        )
        self.loss = math.nan
        self.step = 0

    def run(self, on_progress: Progress) -> float:
        settings = self.settings
        decay_steps = min(DECAY_STEPS, settings.gradient_steps // 2)
        for limit in (settings.gradient_steps, PATIENCE * settings.gradient_steps):
            while self._is_before_decay() and self.step < limit - decay_steps:
                self._update(rate=min(1.0, (self.step + 1) / WARMUP_STEPS))
                on_progress(self.step, limit, self.loss)
        total = self.step + decay_steps
        if self.loss <= settings.max_loss:
            for left in reversed(range(decay_steps)):
                self._update(rate=FINAL_RATE + (1 - FINAL_RATE) * left / decay_steps)
                on_progress(self.step, total, self.loss)
        if not self.loss <= settings.max_loss:
            raise RunFailedError(self._failure_message(), cause="warm_start")
        return self.loss

    def _is_before_decay(self) -> bool:
        return self.step < self.settings.min_gradient_steps or not self.loss <= self.settings.max_loss

    def _update(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * rate
        loss = response_loss(self.model, next(self.batches))
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        self.loss = loss.item() if math.isnan(self.loss) else SMOOTHING * self.loss + (1 - SMOOTHING) * loss.item()

    def _failure_message(self) -> str:
        settings = self.settings
        return (
            f"The warm start ended with loss {self.loss:.3f} after {self.step} gradient steps; above "
            f"model.warmStart.maxLoss ({settings.max_loss}) a policy is too poor to learn from its own turns. "
            f"Try model.warmStart.gradientSteps={2 * settings.gradient_steps} or another model.warmStart.seed."
        )


@contextmanager
def _one_thread() -> Iterator[None]:
    """With one thread, equal settings give equal weights on any number of cores; more gain nothing on small tensors."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def response_loss(model: Qwen2ForCausalLM, batch: Sequence[Row]) -> torch.Tensor:
    """Return the mean cross-entropy over the response tokens of a batch."""
    lengths = [len(row.prompt_ids) + len(row.response_ids) - 1 for row in batch]
    ids_BT = torch.full((len(batch), max(lengths)), PAD_ID)
    responses_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    targets_BT = torch.zeros_like(responses_BT)
    for index, (row, length) in enumerate(zip(batch, lengths, strict=True)):
        ids_BT[index, :length] = torch.tensor(row.prompt_ids + row.response_ids[:-1])
        responses_BT[index, len(row.prompt_ids) - 1 : length] = True
        targets_BT[index, length - len(row.targets) : length] = True
    # Padding on the right is never looked at by a causal model, so no mask is needed.
    hidden_BTH = model.model(input_ids=ids_BT, use_cache=False).last_hidden_state
    logits_RV = model.lm_head(hidden_BTH[responses_BT])
    response_ids_R = torch.tensor([token for row in batch for token in row.response_ids])
    targets_RV = nn.functional.one_hot(response_ids_R, logits_RV.shape[-1]).to(logits_RV.dtype)
    targets_RV[targets_BT[responses_BT]] = torch.cat([row.targets for row in batch])
    return nn.functional.cross_entropy(logits_RV, targets_RV)


def _batches(rows: Sequence[Row], settings: WarmStart) -> Iterator[list[Row]]:
    """Yield batches for ever; each has rows of about the same length, so that little is padded."""
    generator = random.Random(settings.seed)
    size = settings.batch_size
    while True:
        drawn = generator.choices(rows, k=size * BATCHES_SORTED_TOGETHER)
        drawn.sort(key=lambda row: len(row.prompt_ids) + len(row.response_ids))
        batches = [drawn[start : start + size] for start in range(0, len(drawn), size)]
        generator.shuffle(batches)
        yield from batches
