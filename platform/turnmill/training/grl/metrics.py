"""Metrics of the episodes of a step or a validation, by GRL's names."""

from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from turnmill.rollout.grl.episode_summary import GrlEpisodeSummary
from turnmill.training.batches.diagnostics import by_outcome
from turnmill.training.batches.rewards import reward_quantiles

TEST_SCORE = "val-env/test_score/unknown"
"""Mean score of a validation's episodes, by GRL's name."""


def step_metrics(summaries: Sequence[GrlEpisodeSummary], *, max_response_tokens: int) -> dict[str, float]:
    """Return the metrics of all episodes of a step, including those that are not trained on.

    A response with `max_response_tokens` counts as cut off.
    """
    solved_K = [each.success for each in summaries]
    return {
        "turnmill/trajectories": float(len(summaries)),
        "turnmill/success": _mean(each.success for each in summaries),
        "turnmill/reward_mean": _mean(each.reward for each in summaries),
        "turnmill/episode_length": _mean(each.num_turns for each in summaries),
        **by_outcome("turnmill/episode_length", solved_K, [each.num_turns for each in summaries]),
        **by_outcome(
            "turnmill/response_length",
            solved_K,
            [sum(each.response_lengths) for each in summaries],
            [len(each.response_lengths) for each in summaries],
        ),
        "turnmill/truncated_ratio": _mean(
            length >= max_response_tokens for each in summaries for length in each.response_lengths
        ),
        "turnmill/valid_action_ratio": _mean(each.metrics["valid_action"] for each in summaries),
        **{
            f"turnmill/episodes/{reason}": float(count)
            for reason, count in Counter(each.stop_reason for each in summaries).items()
        },
        **reward_quantiles(torch.tensor([each.reward for each in summaries])),
        "train/response_length": _mean(sum(each.response_lengths) for each in summaries),
        **{f"train/{name}": value for name, value in metrics_by_tag(summaries).items()},
    }


def environment_metrics(summaries: Sequence[GrlEpisodeSummary]) -> dict[str, float]:
    """Return the metrics of a validation by kind of agent, and the mean score."""
    return {
        **{f"val-env/{name}": value for name, value in metrics_by_tag(summaries).items()},
        "val-env/response_length": _mean(sum(each.response_lengths) for each in summaries),
        TEST_SCORE: _mean(each.reward for each in summaries),
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
