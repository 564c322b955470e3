"""Metrics of a step's trajectories."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter

import numpy as np
import numpy.typing as npt
import torch

from turnmill.core.trajectory import EpisodeSummary
from turnmill.observability.step_time import IN_FLIGHT, ROLLOUT, SLOTS
from turnmill.training.advantages.index import groups_with_different_rewards
from turnmill.training.batches.diagnostics import by_outcome
from turnmill.training.batches.rewards import reward_quantiles
from turnmill.training.batches.trajectory import Split, TrajectoryBatch


def uniform_groups_ratio(batch: TrajectoryBatch, *, num_dropped: int = 0) -> float:
    """Return the share of groups in which all trajectories have the same reward, including dropped groups."""
    groups_K = batch.groups_K
    num_groups = len({*groups_K}) + num_dropped
    differ = groups_with_different_rewards(groups_K, (summary.reward for summary in batch.summaries))
    return (num_groups - len(differ)) / max(1, num_groups)


def rollout_metrics(summaries: Sequence[EpisodeSummary], parts: Split, at_once: int) -> dict[str, float]:
    """Return the seconds of each part of the rollout, summed over trajectories, and how many were in flight at once."""
    seconds = [summary.seconds for summary in summaries] + [failure.seconds for failure in parts.failures]
    metrics = {f"{ROLLOUT}{part}": sum([spent[part] for spent in seconds]) for part in IN_FLIGHT}
    return metrics | {SLOTS: float(min(len(seconds), at_once))}


def trajectory_metrics(batch: TrajectoryBatch, parts: Split, *, at_once: int) -> dict[str, float]:
    """Return the metrics of all trajectories that did not fail; turns and tokens are those that are trained on."""
    played = (*batch.summaries, *parts.dropped.summaries)
    numbers = attrgetter("success", "num_turns", "reward")
    columns = np.fromiter(map(numbers, played), np.dtype((np.float64, (3,))), len(played))
    solved_K, turns_K, rewards_K = np.ascontiguousarray(columns.T)
    trained = len(batch.summaries)
    metrics = {
        "turnmill/turns": float(turns_K[:trained].sum()),
        "turnmill/trajectories": float(len(played)),
        "turnmill/prompt_tokens": float(batch.prompt_lengths_R.sum()),
        "turnmill/response_tokens": float(batch.trained_R.sum()),
        "turnmill/success": _mean(solved_K),
        "turnmill/reward_mean": _mean(rewards_K),
        "turnmill/episode_length": _mean(turns_K),
    }
    reasons = Counter([each.stop_reason for each in played])
    metrics |= {f"turnmill/episodes/{reason}": float(count) for reason, count in reasons.items()}
    metrics["turnmill/episodes/failed"] = float(len(parts.failed.keys))
    metrics["turnmill/failed_ratio"] = parts.failed_ratio
    metrics["turnmill/truncated_ratio"] = reasons["max_tokens"] / max(1, len(played))
    metrics |= by_outcome("turnmill/episode_length", solved_K, turns_K)
    metrics |= by_outcome("turnmill/response_length", solved_K[:trained], batch.trained_K, turns_K[:trained])
    metrics |= reward_quantiles(torch.tensor(rewards_K, dtype=torch.float32))
    metrics["turnmill/uniform_groups_ratio"] = uniform_groups_ratio(batch, num_dropped=parts.dropped.num_tasks)
    metrics["turnmill/token_mismatches"] = float(batch.num_unsampled_tokens)
    metrics |= rollout_metrics(played, parts, at_once)
    metrics |= {f"turnmill/failures/{cause}": float(count) for cause, count in parts.causes.items()}
    if valid := _valid_ratios(each.metrics for each in played):
        metrics["turnmill/valid_action_ratio"] = _mean(valid)
    return metrics | agent_metrics(played)


def agent_metrics(summaries: Sequence[EpisodeSummary]) -> dict[str, float]:
    """Return mean, maximum and minimum of each metric over the trajectories that have it."""
    metrics: dict[str, float] = {}
    for name, values in sorted(_values_by_name([summary.metrics for summary in summaries]).items()):
        key = f"turnmill/tool/{name}"
        # One after another, as sums of other trajectories are.
        total = float(values.cumsum()[-1])
        metrics |= {
            f"{key}/mean": total / len(values),
            f"{key}/max": float(values.max()),
            f"{key}/min": float(values.min()),
        }
    return metrics


def _values_by_name(found: Sequence[Mapping[str, float]]) -> dict[str, npt.NDArray[np.float64]]:
    """Return the values of each name, which most trajectories have."""
    kinds = {*map(tuple, found)}
    if len(kinds) == 1 and (names := [*kinds.pop()]):
        numbers = chain.from_iterable(each.values() for each in found)
        return dict(zip(names, np.fromiter(numbers, float).reshape(-1, len(names)).T, strict=True))
    values: defaultdict[str, list[float]] = defaultdict(list)
    for each in found:
        for name, value in each.items():
            values[name].append(value)
    return {name: np.array(of_name, float) for name, of_name in values.items()}


def validation_metrics(summaries: Sequence[EpisodeSummary], *, num_failed: int = 0) -> dict[str, float]:
    """Return means over the episodes of a validation that did not fail."""
    found = [summary.metrics for summary in summaries]
    metrics = {
        "validation/episodes": float(len(summaries)),
        "validation/success": _mean(summary.success for summary in summaries),
        "validation/reward": _mean(summary.reward for summary in summaries),
        "validation/episode_length": _mean(summary.num_turns for summary in summaries),
        # Failures after which the episode was repeated, and others.
        "validation/failures": sum(each.get("failures", 0.0) for each in found) + float(num_failed),
    }
    if any("num_tool_calls" in each for each in found):
        metrics["validation/tool_use"] = _mean(each.get("num_tool_calls", 0.0) > 0 for each in found)
    if valid := _valid_ratios(found):
        metrics["validation/valid_action_ratio"] = _mean(valid)
    return metrics


def _valid_ratios(found: Iterable[Mapping[str, float]]) -> list[float]:
    """Return the share of valid actions of each trajectory that has acted.

    For agents with tools, `valid_action` is their number, as in verl-tool.
    """
    ratios = []
    for metrics in found:
        name = "valid_action_ratio" if "num_tool_calls" in metrics else "valid_action"
        if name in metrics:
            ratios.append(metrics[name])
    return ratios


def _mean(values: Iterable[float]) -> float:
    found = [*map(float, values)]
    return sum(found) / len(found) if found else 0.0
