"""Turn-level PPO (Verlog): GAE with one discount within a turn and another between turns.

Axes: R rows, G response tokens.
"""

from torch import Tensor

from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.algorithm import TurnPpo
from turnmill.jobs.verl_settings import VerlSettings
from turnmill.training.advantages.gae import dual_discount_gae, whiten
from turnmill.training.algorithms.base import Algorithm
from turnmill.training.algorithms.critic import critic_settings


class TurnPpoAlgorithm(Algorithm[TurnPpo]):
    """Dual-discount GAE over the turns of each environment, with a critic."""

    def estimate(
        self, rewards_RG: Tensor, values_RG: Tensor, mask_RG: Tensor, dones_R: Tensor, *, num_environments: int
    ) -> tuple[Tensor, Tensor]:
        """Return advantages and returns, both of shape (rows, response tokens); see `dual_discount_gae`.

        Rows are time-major. Advantages are whitened if the job says so.
        """
        settings = self.settings
        advantages_RG, returns_RG = dual_discount_gae(
            rewards_RG,
            values_RG,
            mask_RG,
            dones_R,
            num_environments=num_environments,
            token_gamma=settings.token_gamma,
            token_lambda=settings.token_lambda,
            step_gamma=settings.step_gamma,
            step_lambda=settings.step_lambda,
        )
        return (whiten(advantages_RG, mask_RG) if settings.whiten else advantages_RG), returns_RG

    def verl_settings(self, job: AgentTrainingJob) -> VerlSettings:
        """Return the settings of mini-batches of turns and of the critic, by verl's dotted names."""
        minibatch = self.settings.minibatch_turns
        return critic_settings(self.settings, minibatch=minibatch, seed=job.spec.training.seed) | {
            "actor_rollout_ref.actor.ppo_mini_batch_size": minibatch,
            "algorithm.adv_estimator": "gae",
        }
