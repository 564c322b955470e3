"""GiGPO (Feng et al., 2025, arXiv:2505.10978): episodes compared within their group, turns within the same state.

Axes: R rows, G response tokens of a row, K trajectories, L tokens of a whole trajectory.
"""

from collections.abc import Sequence

from torch import Tensor

from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.trajectory_algorithms import GigPo
from turnmill.jobs.verl_settings import VerlSettings
from turnmill.training.advantages.estimators import state_advantages
from turnmill.training.advantages.rows import Rows
from turnmill.training.algorithms.base import TrajectoryAlgorithm
from turnmill.training.algorithms.grpo import group_advantages


class GigPoAlgorithm(TrajectoryAlgorithm[GigPo]):
    """GRPO's advantages of episodes, plus advantages of turns that began in the same state (anchor states)."""

    estimator = "grpo"
    constant_over_row = True
    drops_singletons = True

    def advantages(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the sum of the advantages of episodes and turns, and the returns of episodes.

        Both have the shape (rows, response tokens).
        """
        advantages_RG, returns_RG = super().advantages(rows)
        index = rows.index
        of_turns_R = state_advantages(
            rows.counted_rewards(index).sum(1),
            index.rows_K,
            rows.situations,
            gamma=self.settings.gamma,
            normalise=self.settings.normalise,
        )
        return advantages_RG + self.settings.step_weight * of_turns_R[:, None] * rows.mask_RG, returns_RG

    def estimate_tokens(
        self, rewards_KL: Tensor, mask_KL: Tensor, groups_K: Sequence[str], values_KL: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return GRPO's advantage of each episode at each of its tokens; see `group_advantages`."""
        return group_advantages(rewards_KL, groups_K, normalise=self.settings.normalise)

    def metrics(self, rows: Rows, penalties_R: Tensor) -> dict[str, float]:
        """Return the share of turns that began in the same state as another turn."""
        return {"turnmill/same_state_ratio": rows.same_state_ratio}

    def verl_settings(self, job: AgentTrainingJob) -> VerlSettings:
        """Return the settings of every algorithm, with discount and normalization."""
        return super().verl_settings(job) | {
            "algorithm.norm_adv_by_std_in_grpo": self.settings.normalise,
            "algorithm.gamma": self.settings.gamma,
        }
