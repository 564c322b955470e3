"""What a step's and a validation's episodes say, by the names that GRL logs them under."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from turnmill.rollout.grl.episode_summary import EpisodeSummary
from turnmill.training.batches.rewards import reward_quantiles


def step_metrics(told: Sequence[Mapping[str, Any]], episodes: Sequence[EpisodeSummary]) -> dict[str, float]:
    """Of all episodes of a step, those too that are not learned from; turns and tokens are of those that are."""
    return {
        "turnmill/trajectories": float(len(told)),
        "turnmill/success": _mean(float(each["success"]) for each in told),
        "turnmill/reward_mean": _mean(each["reward"] for each in told),
        "turnmill/episode_length": _mean(len(episode.rewards) for episode in episodes),
        "turnmill/valid_action_ratio": _mean(each["figures"]["valid_action"] for each in told),
        **{
            f"turnmill/episodes/{reason}": float(count)
            for reason, count in Counter(each["stop_reason"] for each in told).items()
        },
        **reward_quantiles(torch.tensor([float(each["reward"]) for each in told])),
        **{f"train/{name}": value for name, value in figures_by_tag(episodes).items()},
    }


def environment_metrics(told: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of a validation: the figures of each kind of agent, and the mean score."""
    episodes = [EpisodeSummary.read(each) for each in told]
    return {
        **{f"val-env/{name}": value for name, value in figures_by_tag(episodes).items()},
        "val-env/test_score/unknown": _mean(each["reward"] for each in told),
    }


def figures_by_tag(episodes: Sequence[EpisodeSummary]) -> dict[str, float]:
    """The sum of each figure, divided by the number of agents of its tag."""
    sizes = Counter(episode.tag for episode in episodes)
    sums: dict[str, float] = {}
    for episode in episodes:
        for name, value in episode.metrics.items():
            sums[name] = sums.get(name, 0.0) + value / sizes[episode.tag]
    return sums


def _mean(values: Iterable[float]) -> float:
    found = [float(value) for value in values]
    return sum(found) / len(found) if found else 0.0
