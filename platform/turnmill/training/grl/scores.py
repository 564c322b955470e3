"""Scores of a step's episodes by GRL's rules: normalized rewards with penalties, placed on tokens.

Axes: K trajectories, J turns of a trajectory, R rows, G response tokens.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from turnmill.jobs.grl_agent import RewardNormalization
from turnmill.rollout.grl.episode_summary import GrlEpisodeSummary
from turnmill.training.advantages.precision import at_least_float32

MIN_STD = 1e-6
CLIP = (-1.0, 3.0)

Group = TypeVar("Group", bound=Hashable)


class ScoredEpisode(Protocol):
    """What scores are computed from, such as a GrlEpisodeSummary."""

    @property
    def group(self) -> int:
        """Number of its group."""

    @property
    def tag(self) -> str:
        """Name of its kind of agent."""

    @property
    def turn_rewards(self) -> tuple[float, ...]:
        """Rewards of its turns."""

    @property
    def turn_penalties(self) -> tuple[float, ...]:
        """Penalties of its turns."""


def normalise(rewards_K: Tensor, groups_K: Sequence[Hashable], method: str) -> Tensor:
    """Return rewards normalized within their groups, shape (trajectories,); 0 if a group's standard deviation is 0.

    `method` is one of `rewardNormalization.method`.
    """
    rewards_K = at_least_float32(rewards_K)
    if method == "identity":
        return rewards_K.clone()
    normalised_K = torch.zeros_like(rewards_K)
    for members in _members(groups_K).values():
        found = rewards_K[members]
        centred, std = found - found.mean(), deviation(found)
        if method == "mean":
            normalised_K[members] = centred
        elif std > MIN_STD:
            normalised_K[members] = centred / (std + MIN_STD)
    return normalised_K.clamp(*CLIP) if method == "asym_clip" else normalised_K


def deviation(values: Tensor) -> float:
    """Return the unbiased standard deviation; 0 for a single value."""
    return float(at_least_float32(values).std(unbiased=True)) if len(values) > 1 else 0.0


def _members(groups_K: Sequence[Group]) -> dict[Group, list[int]]:
    members: dict[Group, list[int]] = {}
    for position, group in enumerate(groups_K):
        members.setdefault(group, []).append(position)
    return members


@dataclass(frozen=True)
class Scores:
    """Scores of a step's trajectories."""

    turns_K: tuple[Tensor, ...]
    """Scores of each trajectory's turns, shape (turns,): normalized, with penalties."""

    filtered_K: Tensor
    """Normalized score of each trajectory, with penalties, by which the filter chooses groups: in GRL's order of
    operations and its precision, as deviations of normalized scores differ in their last digits alone."""

    @property
    def sums_K(self) -> Tensor:  # noqa: N802 (named for its axis)
        """Scores of whole trajectories."""
        return torch.stack([turns.sum() for turns in self.turns_K])

    @classmethod
    def of(cls, episodes: Sequence[ScoredEpisode], settings: RewardNormalization) -> "Scores":
        """Compute the scores of episodes; penalties are added after normalization."""
        rewards_KJ = [torch.tensor(episode.turn_rewards, dtype=torch.float64) for episode in episodes]
        penalties_KJ = [torch.tensor(episode.turn_penalties, dtype=torch.float64) for episode in episodes]
        sums_K = torch.stack([rewards.sum() for rewards in rewards_KJ])
        groups_K = [_comparison_group(episode, settings.grouping) for episode in episodes]
        normalised_K = normalise(sums_K, groups_K, settings.method)
        scales_K = _scales(sums_K, groups_K, settings.method)
        turns_K = [
            rewards * scale + (normalised - scale * rewards.sum()) / len(rewards) + penalties
            for rewards, penalties, scale, normalised in zip(
                rewards_KJ, penalties_KJ, scales_K, normalised_K, strict=True
            )
        ]
        filtered_K = normalise(sums_K.float(), groups_K, settings.method)
        filtered_K += torch.stack([penalties.sum() for penalties in penalties_KJ]).float()
        return cls(tuple(turns_K), filtered_K)


def _comparison_group(episode: ScoredEpisode, grouping: str) -> Hashable:
    return {"state": episode.group, "inductive": episode.tag, "batch": 0}[grouping]


def _scales(sums_K: Tensor, groups_K: Sequence[Hashable], method: str) -> Tensor:
    """Return the factor by which normalization multiplies rewards; its offset is spread over a trajectory's turns."""
    scales_K = torch.ones_like(sums_K)
    if method in ("mean_std", "asym_clip"):
        for members in _members(groups_K).values():
            std = deviation(sums_K[members])
            scales_K[members] = 1 / (std + MIN_STD) if std > MIN_STD else 0.0
    return scales_K


@dataclass(frozen=True)
class GroupSelection:
    """Groups of a step to train on, and metrics of the filter."""

    kept: frozenset[int]
    metrics: Mapping[str, float]

    @classmethod
    def of(cls, scores_K: Tensor, groups_K: Sequence[int], *, ratio: float, kind: str) -> "GroupSelection":
        """Choose the share `ratio` of the groups, one at least, by the standard deviation of their scores.

        `kind` `std` takes the largest deviations, as RAGEN's uncertainty-based filtering does (arXiv:2504.20073),
        `std_rev` the smallest.
        """
        spread = {group: deviation(scores_K[members]) for group, members in _members(groups_K).items()}
        best_first = sorted(spread, key=lambda group: (-spread[group] if kind == "std" else spread[group], group))
        kept = best_first[: max(1, int(ratio * len(spread)))]
        values = {group: scores_K[members] for group, members in _members(groups_K).items()}
        return cls(
            frozenset(kept),
            {
                **_group_metrics("in_group", [values[group] for group in spread]),
                **_group_metrics("chosen_in_group", [values[group] for group in kept]),
            },
        )


def _group_metrics(name: str, values: Sequence[Tensor]) -> dict[str, float]:
    """Return means over groups of the standard deviation, maximum and mean within each group."""
    return {
        f"rollout/{name}_std": sum(map(deviation, values)) / len(values),
        f"rollout/{name}_max": sum(float(found.max()) for found in values) / len(values),
        f"rollout/{name}_mean": sum(float(found.mean()) for found in values) / len(values),
    }


def place_scores(
    turns_K: Sequence[Tensor],
    episodes: Sequence[GrlEpisodeSummary],
    rows_K: Sequence[Sequence[int]],
    *,
    by_turn: bool,
    lengths_R: Sequence[int],
) -> list[dict[int, float]]:
    """Return the scores of each row by response token; other tokens have none.

    With `by_turn`, each turn's score is at the last token of its response; otherwise their sum is at the last token of
    the trajectory. `rows_K` has the positions of each trajectory's rows, in order.
    """
    scores_R: list[dict[int, float]] = [{} for _ in lengths_R]
    for turns, episode, rows in zip(turns_K, episodes, rows_K, strict=True):
        if by_turn:
            for score, (row, token) in zip(turns.tolist(), episode.response_ends, strict=True):
                of_row = scores_R[rows[row]]
                of_row[token] = of_row.get(token, 0.0) + score
        else:
            scores_R[rows[-1]][lengths_R[rows[-1]] - 1] = float(turns.sum())
    return scores_R


def scores_of_tokens(scores_R: Sequence[Mapping[int, float]], lengths_R: Tensor) -> Tensor:
    """Return the result of `place_scores` as a tensor, shape (rows, response tokens)."""
    scores_RG = torch.zeros(len(scores_R), int(lengths_R.max()), dtype=torch.float32)
    for scores_G, of_row in zip(scores_RG, scores_R, strict=True):
        for token, score in of_row.items():
            scores_G[token] = score
    return scores_RG
