"""Behaviour cloning of a tiny Qwen2 model. Axes: B rows, T tokens, A answer tokens of the batch,
K tokens of an action with its end, V vocabulary."""

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
"""Told after every gradient step: steps done, steps expected, smoothed loss."""

# Words are copied from the prompt by attention between alike tokens. With weights as small as Qwen2's own (0.02)
# it takes hundreds of steps to form; with these, about one hundred.
INITIAL_WEIGHT_STD = 0.06

WARMUP_STEPS = 30
COOLDOWN_STEPS = 200
LAST_RATE = 0.1
"""Share of the learning rate that is left when the cool-down ends."""

PATIENCE = 2
"""Multiple of `gradient_steps` that is allowed where the loss falls late."""

SMOOTHING = 0.95
BATCHES_SORTED_TOGETHER = 16


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One demonstrated turn as token ids; the answer includes its end token."""

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    action_targets: torch.Tensor
    """Target distributions of the last K answer tokens, of shape (K, V); those before them are certain."""


def build_model(vocabulary: int, settings: WarmStart) -> Qwen2ForCausalLM:
    """A Qwen2 model of random weights, tied embeddings, float32."""
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
    """Train `model` on the answers of `rows`; returns the smoothed loss at the end, in nats per answer token.

    The learning rate stays up until the loss is below `max_loss`, then falls over a number of steps. It is the loss
    that decides, since it lies still for long before it drops; a loss that never does raises RunFailedError.
    """
    least = least_loss(rows)
    if settings.max_loss < least:
        raise RunFailedError(_explain_least(least, settings), cause="warm_start")
    with _one_thread():
        return _Cloning(model, rows, settings).run(on_progress)


def least_loss(rows: Sequence[Row]) -> float:
    """Return the loss of a perfect imitation: the mean entropy of what the answers are drawn from."""
    entropy: float = sum(torch.special.entr(row.action_targets).sum().item() for row in rows)
    return entropy / sum(len(row.answer_ids) for row in rows)


def _explain_least(least: float, settings: WarmStart) -> str:
    return (
        f"model.warmStart.maxLoss: {settings.max_loss} is below {least:.3f}, which a perfect imitation has, because "
        f"the demonstrations are drawn at random in part. Set it to {1.25 * least:.2f}, or reduce "
        "model.warmStart.actionNoise or malformedShare."
    )


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
        cooldown = min(COOLDOWN_STEPS, settings.gradient_steps // 2)
        for limit in (settings.gradient_steps, PATIENCE * settings.gradient_steps):
            while self._goes_on() and self.step < limit - cooldown:
                self._update(rate=min(1.0, (self.step + 1) / WARMUP_STEPS))
                on_progress(self.step, limit, self.loss)
        total = self.step + cooldown
        if self.loss <= settings.max_loss:
            for left in reversed(range(cooldown)):
                self._update(rate=LAST_RATE + (1 - LAST_RATE) * left / cooldown)
                on_progress(self.step, total, self.loss)
        if not self.loss <= settings.max_loss:
            raise RunFailedError(self._explain(), cause="warm_start")
        return self.loss

    def _goes_on(self) -> bool:
        return self.step < self.settings.min_gradient_steps or not self.loss <= self.settings.max_loss

    def _update(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * rate
        loss = answer_loss(self.model, next(self.batches))
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        self.loss = loss.item() if math.isnan(self.loss) else SMOOTHING * self.loss + (1 - SMOOTHING) * loss.item()

    def _explain(self) -> str:
        settings = self.settings
        return (
            f"The warm start ended with loss {self.loss:.3f} after {self.step} gradient steps; above "
            f"model.warmStart.maxLoss ({settings.max_loss}) a policy is too poor to learn from its own turns. "
            f"Try model.warmStart.gradientSteps={2 * settings.gradient_steps} or another model.warmStart.seed."
        )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Equal settings give equal weights, whatever the number of cores; tensors this small gain nothing from more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def answer_loss(model: Qwen2ForCausalLM, batch: Sequence[Row]) -> torch.Tensor:
    """Mean cross-entropy over the answer tokens of a batch."""
    lengths = [len(row.prompt_ids) + len(row.answer_ids) - 1 for row in batch]
    ids_BT = torch.full((len(batch), max(lengths)), PAD_ID)
    answers_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    actions_BT = torch.zeros_like(answers_BT)
    for index, (row, length) in enumerate(zip(batch, lengths, strict=True)):
        ids_BT[index, :length] = torch.tensor(row.prompt_ids + row.answer_ids[:-1])
        answers_BT[index, len(row.prompt_ids) - 1 : length] = True
        actions_BT[index, length - len(row.action_targets) : length] = True
    # Padding on the right is never looked at by a causal model, so no mask is needed.
    hidden_BTH = model.model(input_ids=ids_BT, use_cache=False).last_hidden_state
    logits_AV = model.lm_head(hidden_BTH[answers_BT])
    answer_ids_A = torch.tensor([token for row in batch for token in row.answer_ids])
    targets_AV = nn.functional.one_hot(answer_ids_A, logits_AV.shape[-1]).to(logits_AV.dtype)
    targets_AV[actions_BT[answers_BT]] = torch.cat([row.action_targets for row in batch])
    return nn.functional.cross_entropy(logits_AV, targets_AV)


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
