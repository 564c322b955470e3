"""Metrics of validations with several samples of each task: `mean@N`, `best@N`, `worst@N` and `maj@N`, as in verl."""

from collections.abc import Sequence

import numpy as np
from verl.trainer.ppo.metric_utils import process_validation_metrics

from turnmill.core.trajectory import EpisodeSummary

_SOURCE = "validation"


def sample_metrics(summaries: Sequence[EpisodeSummary], samples: int) -> dict[str, float]:
    """Return verl's metrics over the tasks all of whose samples ended; none for a single sample.

    Votes are counted where every sample has a prediction.
    """
    if samples == 1:
        return {}
    tasks_played = _by_task(summaries)
    # Samples of a task are alike, so the interval of the success counts tasks.
    metrics = {"validation/episodes": float(len(tasks_played))}
    complete = [found for found in tasks_played if len(found) == samples]
    if not complete:
        return metrics
    ended = [summary for found in complete for summary in found]
    values: dict[str, list[float] | list[str | None]] = {
        "reward": [summary.reward for summary in ended],
        "success": [float(summary.success) for summary in ended],
        "pred": [summary.prediction for summary in ended],
    }
    tasks = [_task(summary) for summary in ended]
    state = np.random.get_state()
    try:
        found = process_validation_metrics([_SOURCE] * len(ended), tasks, values)[_SOURCE]
    finally:
        # verl sets the seed of the process for its bootstrap.
        np.random.set_state(state)
    return metrics | {
        f"validation/{name}/{metric}": float(value)
        for name in ("reward", "success")
        for metric, value in found[name].items()
    }


def _by_task(summaries: Sequence[EpisodeSummary]) -> list[list[EpisodeSummary]]:
    tasks: dict[str, list[EpisodeSummary]] = {}
    for summary in sorted(summaries, key=lambda summary: summary.episode_id):
        tasks.setdefault(_task(summary), []).append(summary)
    return list(tasks.values())


def _task(summary: EpisodeSummary) -> str:
    """Return the part of an episode's id before its sample."""
    return summary.episode_id.rpartition("-")[0]
