"""Metrics of the episodes of a step or a validation, by GRL's names."""

from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from turnmill.rollout.grl.episode_summary import GrlEpisodeSummary
from turnmill.training.batches.rewards import reward_quantiles


def step_metrics(summaries: Sequence[GrlEpisodeSummary]) -> dict[str, float]:
    """Return the metrics of all episodes of a step, including those that are not trained on."""
    return {
        "turnmill/trajectories": float(len(summaries)),
        "turnmill/success": _mean(each.success for each in summaries),
        "turnmill/reward_mean": _mean(each.reward for each in summaries),
        "turnmill/episode_length": _mean(each.num_turns for each in summaries),
        "turnmill/valid_action_ratio": _mean(each.metrics["valid_action"] for each in summaries),
        **{
            f"turnmill/episodes/{reason}": float(count)
            for reason, count in Counter(each.stop_reason for each in summaries).items()
        },
        **reward_quantiles(torch.tensor([each.reward for each in summaries])),
        **{f"train/{name}": value for name, value in metrics_by_tag(summaries).items()},
    }


def environment_metrics(summaries: Sequence[GrlEpisodeSummary]) -> dict[str, float]:
    """Return the metrics of a validation by kind of agent, and the mean score."""
    return {
        **{f"val-env/{name}": value for name, value in metrics_by_tag(summaries).items()},
        "val-env/test_score/unknown": _mean(each.reward for each in summaries),
    }


def metrics_by_tag(summaries: Sequence[GrlEpisodeSummary]) -> dict[str, float]:
    """Return the mean of each metric over the episodes of its kind of agent."""
    sizes = Counter(each.tag for each in summaries)
    sums: dict[str, float] = {}
    for each in summaries:
        for name, value in each.agent_metrics.items():
            sums[name] = sums.get(name, 0.0) + value / sizes[each.tag]
    return sums


def _mean(values: Iterable[float]) -> float:
    found = [float(value) for value in values]
    return sum(found) / len(found) if found else 0.0
