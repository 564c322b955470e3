"""Rows of a step as input of algorithms.

Axes: R rows, G response tokens, K trajectories, L tokens of a whole trajectory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from turnmill.training.advantages.gae import singleton_groups
from turnmill.training.advantages.index import TrajectoryIndex, group_of
from turnmill.training.advantages.precision import at_least_float32


@dataclass(frozen=True)
class Rows:
    """Keys, masks and rewards of a step's rows."""

    keys: Sequence[str]
    """Key of each row: {task}_{sample}_{row}."""

    lengths_R: Tensor
    mask_RG: Tensor
    scores_RG: Tensor
    """Rewards from the tasks or environments."""

    rewards_RG: Tensor
    """Scores minus penalties."""

    own_scores: bool = False
    """True if each row has rewards of its own; otherwise each repeats those of its trajectory, which count once."""

    values_RG: Tensor | None = None
    """The critic's values; None without a critic."""

    states_R: Sequence[str] = ()
    """State before the turn of each row; empty if rows are no turns."""

    known_index: TrajectoryIndex | None = None
    """The rows of each trajectory, if they have been looked up."""

    @cached_property
    def index(self) -> TrajectoryIndex:
        """The rows of each trajectory."""
        return self.known_index or TrajectoryIndex.of(self.keys, self.lengths_R)

    @property
    def situations(self) -> list[str]:
        """Task and state of each row; equal for turns of the same task that began in the same state."""
        return [f"{group_of(key)}/{state}" for key, state in zip(self.keys, self.states_R, strict=True)]

    @property
    def same_state_ratio(self) -> float:
        """Share of turns that began in the same state as another turn of their task."""
        return 1.0 - singleton_groups(self.situations).double().mean().item()

    def counted_rewards(self, index: TrajectoryIndex) -> Tensor:
        """Return the rewards, shape (rows, response tokens), with each trajectory's score counted once.

        If rows repeat the score of their trajectory, only the last row keeps it; penalties of all rows are kept.
        """
        if self.own_scores:
            return at_least_float32(self.rewards_RG)
        is_last_R = torch.zeros(len(self.keys), dtype=torch.bool)
        is_last_R[index.last_rows] = True
        return at_least_float32(self.rewards_RG) - self.scores_RG * ~is_last_R[:, None]


def mean_over_trajectories(advantages_RG: Tensor, rows: Rows, weights_RG: Tensor) -> Tensor:
    """Return the mean advantage of the trained tokens of each row's trajectory, shape (rows,).

    `weights_RG` is the number of trained tokens at each position: the mask, or more where one stands for many.
    """
    index = rows.index
    trajectory_R = index.trajectory_of_row
    sums_R = (at_least_float32(advantages_RG) * weights_RG).sum(1)
    sums_K = sums_R.new_zeros(len(index.rows_K)).index_add_(0, trajectory_R, sums_R)
    counts_K = sums_K.new_zeros(len(index.rows_K)).index_add_(0, trajectory_R, weights_RG.sum(1).to(sums_K.dtype))
    return (sums_K / counts_K.clamp(min=1))[trajectory_R]
