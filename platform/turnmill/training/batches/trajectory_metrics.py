"""What a step's trajectories say of it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from turnmill.observability.step_parts import IN_FLIGHT, ROLLOUT, SLOTS
from turnmill.training.batches.rewards import reward_quantiles
from turnmill.training.batches.trajectory import Split, TrajectoryBatch, rewards_of_groups


def uniform_groups_ratio(
    keys: Sequence[str], trajectories: Sequence[Mapping[str, Any]], *, num_dropped: int = 0
) -> float:
    """Share of the groups in which every trajectory has the same reward; so had those that were dropped."""
    kept = [float(len(found) == 1) for found in rewards_of_groups(keys, trajectories).values()]
    return _mean([*kept, *[1.0] * num_dropped])


def rollout_metrics(trajectories: Sequence[Mapping[str, Any]], parts: Split, at_once: int) -> dict[str, float]:
    """What a step's trajectories spent their time on, and how many were in flight at once."""
    seconds = [told["seconds"] for told in trajectories] + [tag["seconds"] for tag in parts.failed.tags]
    metrics = {f"{ROLLOUT}{part}": sum(spent[part] for spent in seconds) for part in IN_FLIGHT}
    return metrics | {SLOTS: float(min(len(seconds), at_once))}


def trajectory_metrics(batch: TrajectoryBatch, parts: Split, *, at_once: int) -> dict[str, float]:
    """What trajectories say of a step: all that did not fail, and for turns and tokens those that are learned from."""
    played = (*batch.trajectories, *parts.dropped.trajectories)
    metrics = {
        "turnmill/turns": sum(t["figures"]["num_turns"] for t in batch.trajectories),
        "turnmill/trajectories": float(len(played)),
        "turnmill/prompt_tokens": float(batch.prompt_lengths_R.sum()),
        "turnmill/response_tokens": float(batch.mask_RG.sum()),
        "turnmill/success": _mean(map(_solved, played)),
        "turnmill/reward_mean": _mean(t["reward"] for t in played),
        "turnmill/episode_length": _mean(t["figures"]["num_turns"] for t in played),
    }
    reasons = Counter(t["stop_reason"] for t in played)
    metrics |= {f"turnmill/episodes/{reason}": float(count) for reason, count in reasons.items()}
    metrics["turnmill/episodes/failed"] = float(len(parts.failed.keys))
    metrics["turnmill/failed_ratio"] = parts.failed_ratio
    metrics |= reward_quantiles(torch.tensor([float(t["reward"]) for t in played]))
    metrics["turnmill/uniform_groups_ratio"] = uniform_groups_ratio(
        batch.meta.keys, batch.trajectories, num_dropped=parts.dropped.num_tasks
    )
    metrics["turnmill/token_mismatches"] = float(batch.num_foreign_tokens)
    metrics |= rollout_metrics(played, parts, at_once)
    metrics |= {f"turnmill/failures/{cause}": float(count) for cause, count in parts.causes.items()}
    valid = [t["figures"]["valid_action"] for t in played if "valid_action" in t["figures"]]
    if valid:
        metrics["turnmill/valid_action_ratio"] = _mean(valid)
    return metrics | figure_metrics(played)


def figure_metrics(trajectories: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean, greatest and least of every figure, over the trajectories that have it."""
    values: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in trajectory["figures"].items():
            values.setdefault(name, []).append(float(value))
    metrics: dict[str, float] = {}
    for name, found in sorted(values.items()):
        key = f"turnmill/tool/{name}"
        metrics |= {f"{key}/mean": _mean(found), f"{key}/max": max(found), f"{key}/min": min(found)}
    return metrics


def validation_metrics(trajectories: Sequence[Mapping[str, Any]], parts: Split) -> dict[str, float]:
    """Averages over the trajectories of a validation that did not fail."""
    figures = [trajectory["figures"] for trajectory in trajectories]
    metrics = {
        "validation/episodes": float(len(trajectories)),
        "validation/success": _mean(map(_solved, trajectories)),
        "validation/reward": _mean(t["reward"] for t in trajectories),
        "validation/episode_length": _mean(f["num_turns"] for f in figures),
        # Those that were played again, and those that were not.
        "validation/failures": sum(f.get("failures", 0.0) for f in figures) + float(len(parts.failed.keys)),
    }
    if any("num_tool_calls" in f for f in figures):
        metrics["validation/tool_use"] = _mean(f.get("num_tool_calls", 0.0) > 0 for f in figures)
    if any("valid_action" in f for f in figures):
        metrics["validation/valid_action_ratio"] = _mean(f["valid_action"] for f in figures if "valid_action" in f)
    return metrics


def _solved(told: Mapping[str, Any]) -> bool:
    """Whether a trajectory ended well: by its last reward where it tells, else by its reward."""
    return bool(told.get("success", told["reward"] > 0))


def _mean(values: Iterable[float]) -> float:
    found = [float(value) for value in values]
    return sum(found) / len(found) if found else 0.0
