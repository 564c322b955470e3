"""REINFORCE++ (Hu, 2025, arXiv:2501.03262), with and without a baseline: rewards whitened over all tokens of a step.

Axes: K trajectories, L tokens of a whole trajectory.
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.trajectory_algorithms import ReinforcePlusPlus, ReinforcePlusPlusBaseline
from turnmill.jobs.verl_settings import VerlSettings
from turnmill.training.algorithms.base import TrajectoryAlgorithm

# verl's modules take seconds to import.


class ReinforcePlusPlusAlgorithm(TrajectoryAlgorithm[ReinforcePlusPlus]):
    """Discounted rewards, whitened over the tokens of a step."""

    estimator = "reinforce_plus_plus"
    normalizes_over_step = True

    def estimate_tokens(
        self, rewards_KL: Tensor, mask_KL: Tensor, groups_K: Sequence[str], values_KL: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return verl's `compute_reinforce_plus_plus_outcome_advantage`: shapes (trajectories, tokens)."""
        from verl.trainer.config import AlgoConfig
        from verl.trainer.ppo.core_algos import compute_reinforce_plus_plus_outcome_advantage

        config = AlgoConfig(gamma=self.settings.gamma)
        found: tuple[Tensor, Tensor] = compute_reinforce_plus_plus_outcome_advantage(rewards_KL, mask_KL, config=config)
        return found

    def verl_settings(self, job: AgentTrainingJob) -> VerlSettings:
        """Return the settings of every algorithm, with the discount."""
        return super().verl_settings(job) | {"algorithm.gamma": self.settings.gamma}


class ReinforcePlusPlusBaselineAlgorithm(TrajectoryAlgorithm[ReinforcePlusPlusBaseline]):
    """Rewards minus the mean of the group, whitened over the tokens of a step."""

    estimator = "reinforce_plus_plus_baseline"
    normalizes_over_step = True
    drops_singletons = True

    def estimate_tokens(
        self, rewards_KL: Tensor, mask_KL: Tensor, groups_K: Sequence[str], values_KL: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return verl's `compute_reinforce_plus_plus_baseline_outcome_advantage`: shapes (trajectories, tokens)."""
        from verl.trainer.ppo.core_algos import compute_reinforce_plus_plus_baseline_outcome_advantage

        index = np.array(groups_K, dtype=object)
        found: tuple[Tensor, Tensor] = compute_reinforce_plus_plus_baseline_outcome_advantage(
            rewards_KL, mask_KL, index
        )
        return found
