"""PPO (Schulman et al., 2017, arXiv:1707.06347) over whole trajectories, with a critic and GAE.

Axes: K trajectories, L tokens of a whole trajectory.
"""

from collections.abc import Sequence

from torch import Tensor

from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.trajectory_algorithms import Ppo
from turnmill.jobs.verl_settings import VerlSettings
from turnmill.training.algorithms.base import TrajectoryAlgorithm
from turnmill.training.algorithms.critic import critic_settings


class PpoAlgorithm(TrajectoryAlgorithm[Ppo]):
    """verl's GAE (Schulman et al., 2015, arXiv:1506.02438) over all tokens that the policy generated."""

    estimator = "gae"
    normalizes_over_step = True

    def estimate_tokens(
        self, rewards_KL: Tensor, mask_KL: Tensor, groups_K: Sequence[str], values_KL: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the result of verl's `compute_gae_advantage_return`, both of shape (trajectories, tokens)."""
        # verl's module takes seconds to import.
        from verl.trainer.ppo.core_algos import compute_gae_advantage_return

        assert values_KL is not None
        found: tuple[Tensor, Tensor] = compute_gae_advantage_return(
            rewards_KL, values_KL, mask_KL, self.settings.gamma, self.settings.gae_lambda
        )
        return found

    @property
    def critic_only_steps(self) -> int:
        """Number of first steps in which only the critic is trained."""
        return self.settings.critic_warmup_steps

    def verl_settings(self, job: AgentTrainingJob) -> VerlSettings:
        """Return the settings of every algorithm, with those of the critic and GAE's discounts."""
        critic = critic_settings(self.settings, minibatch=self.minibatch_tasks(job), seed=job.spec.training.seed)
        return (
            super().verl_settings(job)
            | critic
            | {
                "algorithm.gamma": self.settings.gamma,
                "algorithm.lam": self.settings.gae_lambda,
                # verl names the first step in which the policy learns.
                "trainer.critic_warmup": self.settings.critic_warmup_steps + 1,
            }
        )
