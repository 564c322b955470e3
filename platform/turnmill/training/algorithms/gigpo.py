"""GiGPO: an episode against its group, and a turn against the turns of the group that began in the same state.

Axes: R rows, G response tokens of a row, K trajectories, L tokens of a whole trajectory.
"""

from collections.abc import Sequence

from torch import Tensor

from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.trajectory_algorithms import GigPo
from turnmill.jobs.verl_settings import VerlSettings
from turnmill.training.advantages.estimators import state_advantages
from turnmill.training.advantages.index import TrajectoryIndex
from turnmill.training.advantages.rows import Rows
from turnmill.training.algorithms.base import TrajectoryAlgorithm
from turnmill.training.algorithms.grpo import group_advantages


class GigPoAlgorithm(TrajectoryAlgorithm[GigPo]):
    """GRPO's comparison of episodes, and the same of turns with one state (anchor states)."""

    estimator = "grpo"
    drops_singletons = True

    def advantages(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return the advantages of episodes and turns together, and the returns of episodes."""
        advantages_RG, returns_RG = super().advantages(rows)
        index = TrajectoryIndex.of(rows.keys, rows.lengths_R)
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
        """Return the advantage of each episode in its group, at each of its tokens."""
        return group_advantages(rewards_KL, groups_K, normalise=self.settings.normalise)

    def metrics(self, rows: Rows, penalties_R: Tensor) -> dict[str, float]:
        """Return the share of turns that have others to be compared with."""
        return {"turnmill/same_state_ratio": rows.same_state_ratio}

    def verl_settings(self, job: AgentTrainingJob) -> VerlSettings:
        """Return discount and scale of the comparison, beside the settings of every algorithm."""
        return super().verl_settings(job) | {
            "algorithm.norm_adv_by_std_in_grpo": self.settings.normalise,
            "algorithm.gamma": self.settings.gamma,
        }
