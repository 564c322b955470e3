"""Advantages and returns of the rows of a step.

Axes: R rows, G response tokens, K trajectories, L tokens of a whole trajectory.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from turnmill.jobs.trajectory_algorithms import Dapo, GigPo, TrajectoryAlgorithm
from turnmill.training.advantages.estimators import estimate, state_advantages
from turnmill.training.advantages.gae import alone
from turnmill.training.advantages.index import TrajectoryIndex, group_of


@dataclass(frozen=True, slots=True)
class Rows:
    """What advantages are made of."""

    keys: Sequence[str]
    """Of the rows: {task}_{sample}_{row}."""

    lengths_R: Tensor
    mask_RG: Tensor
    scores_RG: Tensor
    """Rewards as the tasks gave them."""

    rewards_RG: Tensor
    """Scores less penalties."""

    own_scores: bool = False
    """Whether each row has rewards of its own; else each has those of its trajectory, which count once."""

    values_RG: Tensor | None = None
    """What a critic says."""

    states_R: Sequence[str] = ()
    """What each row's turn began with."""

    @property
    def situations(self) -> list[str]:
        """What is the same where turns of the same task began in the same state."""
        return [f"{group_of(key)}/{state}" for key, state in zip(self.keys, self.states_R, strict=True)]

    @property
    def same_state_ratio(self) -> float:
        """Share of the turns that began in a state in which another turn of the same task began."""
        return 1.0 - alone(self.situations).double().mean().item()


def advantages_of(rows: Rows, algorithm: TrajectoryAlgorithm) -> tuple[Tensor, Tensor]:
    """Advantages and returns, shape (rows, response tokens): a trajectory's rows are one sequence to the estimator."""
    joined = TrajectoryIndex.of(rows.keys, rows.lengths_R)
    counted_RG = rows.rewards_RG if rows.own_scores else _counted_once(rows, joined)
    groups_K = [group_of(rows.keys[row]) for row in joined.last_rows]
    values_KL = None if rows.values_RG is None else joined.join(rows.values_RG)
    found = estimate(algorithm, joined.join(counted_RG), joined.join(rows.mask_RG), groups_K, values_KL)
    advantages_RG, returns_RG = (joined.split(of_tokens_KL, rows.mask_RG.shape[1]) for of_tokens_KL in found)
    if isinstance(algorithm, GigPo):
        of_turns_R = state_advantages(
            counted_RG.sum(1), joined.rows_K, rows.situations, gamma=algorithm.gamma, normalise=algorithm.normalise
        )
        advantages_RG = advantages_RG + algorithm.step_weight * of_turns_R[:, None] * rows.mask_RG
    return advantages_RG, returns_RG


def _counted_once(rows: Rows, joined: TrajectoryIndex) -> Tensor:
    """Penalties of every row, and the scores of each trajectory's last row alone."""
    is_last_R = torch.zeros(len(rows.keys), dtype=torch.bool)
    is_last_R[joined.last_rows] = True
    return rows.rewards_RG - rows.scores_RG * ~is_last_R[:, None]


def overlong_penalties(algorithm: Dapo, lengths_R: Tensor, room: int) -> Tensor:
    """DAPO's soft limit, shape (rows,): 0 up to the last `overlong.tokens` of the room, then down to -`penalty`."""
    tokens = algorithm.overlong.tokens
    if tokens is None:
        return torch.zeros_like(lengths_R, dtype=torch.float32)
    beyond_R = (lengths_R - (room - tokens)).clamp(min=0, max=tokens)
    return -algorithm.overlong.penalty * beyond_R / tokens


def mean_over_trajectories(advantages_RG: Tensor, rows: Rows) -> Tensor:
    """The mean advantage of the trained tokens of each row's trajectory, shape (rows,)."""
    joined = TrajectoryIndex.of(rows.keys, rows.lengths_R)
    mask_KL = joined.join(rows.mask_RG)
    means_K = (joined.join(advantages_RG) * mask_KL).sum(1) / mask_KL.sum(1).clamp(min=1)
    return means_K[joined.trajectory_of_row]
