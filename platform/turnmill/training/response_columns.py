"""Columns of responses that training workers write themselves, and verl's metrics of log-probs over all workers.

verl's trainer reads what workers compute of whole sequences, writes it again for the responses, and computes metrics of
it, which at 250,000 rows of 2,000 tokens is 2 GB for each of five columns. Here a worker does so with its own rows, and
the trainer gets a few numbers of each worker.

Axes: R rows, G response tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import itemgetter

import numpy as np
import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transfer_queue import KVBatchMeta
from verl.protocol import DataProto
from verl.trainer.ppo.core_algos import agg_loss
from verl.trainer.ppo.rollout_corr_helper import compute_offpolicy_metrics
from verl.utils import tensordict_utils as tu
from verl.utils.debug.metrics import calculate_debug_metrics
from verl.workers.utils.padding import response_from_nested

from turnmill.training.row_advantages import ROW_VALUES
from turnmill.training.shared_tags import SharedTags

DIFFERENCES = "training/rollout_probs_diff_"
"""Prefix of verl's metrics of the difference between the probabilities of engine and trainer."""

_ENGINE_KL = ("kl", "k3_kl")
_CORRELATION = "training/rollout_actor_probs_pearson_corr"
_STATISTICS = "log_prob_statistics"
_COLUMN = "response_column"
_LONGEST = "longest_response"
_COMPARED = "is_compared"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Log-probs of trainer and engine over the trained tokens of a worker's rows."""

    num_tokens: int
    metrics: dict[str, float]
    """verl's metrics of these tokens."""

    means: tuple[float, float] = (0.0, 0.0)
    """Mean probability by trainer and engine."""

    deviations: tuple[float, float] = (0.0, 0.0)
    """Standard deviations of these probabilities."""


@dataclass(frozen=True, slots=True)
class LogProbStatistics:
    """Entropy and log-probs of a worker's rows."""

    entropy: float
    weight: float
    """Number of tokens or rows of which the entropy is a mean; 0 if it is a sum."""

    comparison: Comparison | None = None
    """None without compared rows."""


def asking_for(
    column: str, batch: KVBatchMeta, settings: dict[str, object], is_compared_R: Sequence[bool] | None = None
) -> KVBatchMeta:
    """Return a batch whose workers write a column of responses; statistics compare all rows, or those given."""
    rows = {ROW_VALUES: {_COMPARED: [*is_compared_R]}} if is_compared_R is not None else {}
    longest = max(map(itemgetter("response_len"), batch.tags))
    asked = {_COLUMN: column, _LONGEST: longest, "compute_loss": False}
    tags = SharedTags(batch.tags)
    return KVBatchMeta([*batch.keys], tags, batch.partition_id, extra_info={**settings, **asked, **rows})


@dataclass(frozen=True)
class Asked:
    """What a worker is asked for, and the columns of its rows that go with it."""

    column: str
    longest: int
    mask: Tensor
    rollout_log_probs: Tensor | None
    is_compared_R: Sequence[bool] = field(default=())

    @classmethod
    def of(cls, data: TensorDict) -> "Asked | None":
        """Return what the trainer asks for, and take it from the rows; None for whole sequences, as verl asks for."""
        column = tu.pop(data, _COLUMN)
        if column is None:
            return None
        mask = data["response_mask"]
        return cls(
            column,
            tu.pop(data, _LONGEST),
            mask,
            data.get("rollout_log_probs", None),
            tu.pop(data, _COMPARED, [True] * len(mask)),
        )

    def responses(self, computed: TensorDict, name: str) -> TensorDict:
        """Return what a worker has computed, with the column of responses in place of that of whole sequences."""
        computed[self.column] = response_from_nested(computed.pop(name), self.mask)
        return computed

    def log_probs(self, computed: TensorDict, model: DictConfig) -> TensorDict:
        """Return log-probs of responses, and their entropy and statistics if it was asked for; `model` is verl's."""
        computed = self.responses(computed, "log_probs")
        if "entropy" in computed.keys():  # noqa: SIM118 (a TensorDict)
            computed["entropy"] = response_from_nested(computed["entropy"], self.mask)
            found = self._statistics(computed[self.column], computed["entropy"], model)
            tu.assign_non_tensor_data(computed, _STATISTICS, found)
        return computed

    def _statistics(self, log_probs: Tensor, entropy: Tensor, model: DictConfig) -> LogProbStatistics:
        mask_RG, average = _padded(self.mask), model.actor.loss_agg_mode
        mean = agg_loss(
            _padded(entropy), mask_RG, average, loss_scale_factor=model.actor.loss_scale_factor or self.longest
        )
        weights = {"token-mean": mask_RG.sum(), "token-sum": torch.tensor(0)}
        weight = weights.get(average, mask_RG.any(1).sum())
        return LogProbStatistics(mean.item(), weight.item(), self._comparison(log_probs, model))

    def _comparison(self, log_probs: Tensor, model: DictConfig) -> Comparison | None:
        if self.rollout_log_probs is None or not model.rollout.calculate_log_probs or not any(self.is_compared_R):
            return None
        columns = (log_probs, self.rollout_log_probs, self.mask)
        return compare(*(_padded(column, self.is_compared_R) for column in columns))


def compare(old_log_probs_RG: Tensor, rollout_log_probs_RG: Tensor, mask_RG: Tensor) -> Comparison:
    """Compare the log-probs of trainer and engine."""
    columns = {
        "old_log_probs": old_log_probs_RG,
        "rollout_log_probs": rollout_log_probs_RG,
        "response_mask": mask_RG,
        "responses": mask_RG,
    }
    metrics = calculate_debug_metrics(DataProto(batch=TensorDict(columns, batch_size=len(mask_RG))))
    kept = mask_RG.bool()
    num_tokens = int(kept.sum())
    if not num_tokens:
        return Comparison(0, metrics)
    metrics |= engine_kl(old_log_probs_RG, rollout_log_probs_RG, mask_RG)
    probabilities = [values_RG[kept].double().exp() for values_RG in (old_log_probs_RG, rollout_log_probs_RG)]
    deviations = [each.std(correction=0).item() for each in probabilities]
    means = [each.mean().item() for each in probabilities]
    return Comparison(num_tokens, metrics, (means[0], means[1]), (deviations[0], deviations[1]))


def engine_kl(old_log_probs_RG: Tensor, rollout_log_probs_RG: Tensor, mask_RG: Tensor) -> dict[str, float]:
    """Return verl's estimates of KL(engine || trainer), in nats per token; an empty mapping without trained tokens.

    `kl` is the mean of the log-ratios, which may be negative, and `k3_kl` Schulman's estimate, which may not.
    """
    if not mask_RG.any():
        return {}
    found = compute_offpolicy_metrics(old_log_probs_RG, rollout_log_probs_RG, mask_RG)
    return {f"rollout_corr/{name}": found[name] for name in _ENGINE_KL}


def statistics_of(computed: KVBatchMeta) -> dict[str, float]:
    """Return verl's metrics over the rows of all workers, from what these have answered."""
    return combine(computed.extra_info[_STATISTICS])


def combine(parts: Sequence[LogProbStatistics]) -> dict[str, float]:
    """Return verl's metrics over the rows of all workers; those of a single one stay as they are."""
    weighted = [(part.entropy, part.weight) for part in parts if part.weight]
    # Without weights, the entropies are sums, or there is nothing to average and verl's mean is no number.
    entropy = _mean(weighted) if weighted else sum(part.entropy for part in parts)
    return {"actor/entropy": entropy} | _combine_comparisons([each for part in parts if (each := part.comparison)])


def _combine_comparisons(parts: Sequence[Comparison]) -> dict[str, float]:
    compared = [part for part in parts if part.num_tokens] or parts[:1]
    if len(compared) < 2:
        return dict(compared[0].metrics) if compared else {}
    metrics = {
        name: _mean([(part.metrics[name], part.num_tokens) for part in compared])
        for name in compared[0].metrics
        if not name.startswith(DIFFERENCES)
    }
    of_part = [(part.metrics[f"{DIFFERENCES}mean"], part.num_tokens) for part in compared]
    squares = [part.metrics[f"{DIFFERENCES}std"] ** 2 * (part.num_tokens - 1) for part in compared]
    return metrics | {
        f"{DIFFERENCES}valid": 1,
        f"{DIFFERENCES}max": max(part.metrics[f"{DIFFERENCES}max"] for part in compared),
        f"{DIFFERENCES}mean": _mean(of_part),
        f"{DIFFERENCES}std": _deviation(of_part, squares),
        _CORRELATION: _correlation(compared),
    }


def _mean(values: Sequence[tuple[float, float]]) -> float:
    """Return the mean of values with their weights."""
    if len(values) == 1:
        return values[0][0]
    return math.fsum(value * weight for value, weight in values) / math.fsum(weight for _, weight in values)


def _deviation(means: Sequence[tuple[float, float]], squares: Sequence[float]) -> float:
    """Return the standard deviation over all parts from the mean and the sum of squared differences of each."""
    total, mean = sum(count for _, count in means), _mean(means)
    within = math.fsum(each for each, (_, count) in zip(squares, means, strict=True) if count > 1)
    between = math.fsum(count * (value - mean) ** 2 for value, count in means)
    return math.sqrt((within + between) / (total - 1))


def _correlation(parts: Sequence[Comparison]) -> float:
    """Return Pearson's correlation of the probabilities of trainer and engine."""
    count_P = np.array([float(part.num_tokens) for part in parts])
    means_P2, deviations_P2 = (np.array([getattr(part, name) for part in parts]) for name in ("means", "deviations"))
    within = [0.0 if math.isnan(r := part.metrics[_CORRELATION]) else r for part in parts]
    centred_P2 = means_P2 - (count_P @ means_P2) / count_P.sum()
    covariance = count_P @ (np.array(within) * deviations_P2.prod(1) + centred_P2.prod(1))
    variances = count_P @ (deviations_P2**2 + centred_P2**2)
    if not variances.all():
        return math.nan
    return float(np.clip(covariance / np.sqrt(variances.prod()), -1, 1))


def _padded(column: Tensor, keep_R: Sequence[bool] | None = None) -> Tensor:
    """Return rows of a nested column, padded with 0."""
    rows = list(column.unbind())
    return pad_sequence(rows if keep_R is None else [*compress(rows, keep_R)], batch_first=True)
