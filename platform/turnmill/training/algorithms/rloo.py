"""RLOO (Ahmadian et al., 2024, arXiv:2402.14740): rewards minus the mean of the others in the group.

Axes: K trajectories, L tokens of a whole trajectory.
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from turnmill.jobs.trajectory_algorithms import Rloo
from turnmill.training.algorithms.base import TrajectoryAlgorithm


class RlooAlgorithm(TrajectoryAlgorithm[Rloo]):
    """verl's leave-one-out baseline."""

    estimator = "rloo"
    constant_over_row = True
    drops_singletons = True

    def estimate_tokens(
        self, rewards_KL: Tensor, mask_KL: Tensor, groups_K: Sequence[str], values_KL: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the result of verl's `compute_rloo_outcome_advantage`, both of shape (trajectories, tokens)."""
        # verl's module takes seconds to import.
        from verl.trainer.ppo.core_algos import compute_rloo_outcome_advantage

        index = np.array(groups_K, dtype=object)
        found: tuple[Tensor, Tensor] = compute_rloo_outcome_advantage(rewards_KL, mask_KL, index)
        return found
