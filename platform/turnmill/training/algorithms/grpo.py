"""GRPO (Shao et al., 2024, arXiv:2402.03300): rewards compared within a group, without a critic.

Axes: K trajectories, L tokens of a whole trajectory.
"""

from collections.abc import Sequence

from torch import Tensor

from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.trajectory_algorithms import Grpo
from turnmill.jobs.verl_settings import VerlSettings
from turnmill.training.advantages.gae import outcome_advantages
from turnmill.training.algorithms.base import TrajectoryAlgorithm

ONE_GROUP = "step"


class GrpoAlgorithm(TrajectoryAlgorithm[Grpo]):
    """Rewards minus the mean of the group, or of the step, divided by the standard deviation."""

    estimator = "grpo"
    constant_over_row = True

    def estimate_tokens(
        self, rewards_KL: Tensor, mask_KL: Tensor, groups_K: Sequence[str], values_KL: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the advantage of each trajectory at each of its tokens; see `group_advantages`."""
        compared = [ONE_GROUP] * len(groups_K) if self.settings.baseline == "step" else groups_K
        return group_advantages(rewards_KL, compared, normalise=self.settings.normalise)

    def verl_settings(self, job: AgentTrainingJob) -> VerlSettings:
        """Return the settings of every algorithm, and whether advantages are divided by the standard deviation."""
        return super().verl_settings(job) | {"algorithm.norm_adv_by_std_in_grpo": self.settings.normalise}


def group_advantages(rewards_KL: Tensor, groups_K: Sequence[str], *, normalise: bool) -> tuple[Tensor, Tensor]:
    """Return GRPO's advantage of each trajectory at each of its tokens, and the same as returns.

    Both have the shape (trajectories, tokens), like `rewards_KL`; `groups_K` is the group of each trajectory.
    """
    advantages_K = outcome_advantages(rewards_KL.sum(1), groups_K, normalise=normalise)
    advantages_KL = advantages_K[:, None].expand_as(rewards_KL)
    return advantages_KL, advantages_KL
