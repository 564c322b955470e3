"""Base classes of algorithms.

Axes: R rows, G response tokens of a row, K trajectories, L tokens of a whole trajectory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.options import read_options
from turnmill.jobs.settings import Settings, TypedSection
from turnmill.jobs.trajectory_algorithms import TrajectoryAlgorithmSettings
from turnmill.jobs.verl_settings import VerlSettings
from turnmill.training.advantages.estimators import move_to_trained_tokens
from turnmill.training.advantages.gae import singleton_groups
from turnmill.training.advantages.index import group_of
from turnmill.training.advantages.precision import at_least_float32
from turnmill.training.advantages.rows import Rows
from turnmill.training.plugins import NoOptions

OwnSettings = TypeVar("OwnSettings", bound=TypedSection)
OwnTrajectorySettings = TypeVar("OwnTrajectorySettings", bound=TrajectoryAlgorithmSettings)

LOSS_AVERAGES = {"token": "token-mean", "trajectory": "seq-mean-token-mean"}


@dataclass(frozen=True, slots=True)
class Sampler:
    """Replay buffer that replaces verl's own; it hands the rows of a step to the trainer."""

    path: str
    """The class, as `package.module:Class`."""

    arguments: Mapping[str, object] = field(default_factory=dict)
    """Values that the buffer reads from `sampler_kwargs`."""


class Algorithm(Generic[OwnSettings]):
    """An algorithm that updates the policy from the rows of a step."""

    options_model: ClassVar[type[Settings]] = NoOptions
    """Model of `algorithm.options`, for algorithms from outside this package."""

    def __init__(self, settings: OwnSettings) -> None:
        self.settings = settings
        self.options: Settings = read_options(
            self.options_model, getattr(settings, "options", {}), "algorithm.options", owner=settings.type
        )

    def verl_settings(self, job: AgentTrainingJob) -> VerlSettings:
        """Return the settings that the algorithm needs, by verl's dotted names."""
        raise NotImplementedError

    def sampler(self, *, is_async: bool) -> Sampler | None:
        """Return the replay buffer; None for verl's own, which lists all keys of the queue at every poll."""
        return Sampler("turnmill.training.replay_buffers:StepReplayBuffer")


class TrajectoryAlgorithm(Algorithm[OwnTrajectorySettings]):
    """An algorithm over whole trajectories: an advantage estimator, with its penalties, metrics and settings."""

    estimator: ClassVar[str] = "grpo"
    """Value of verl's `algorithm.adv_estimator`; turnmill computes the advantages itself."""

    normalizes_over_step: ClassVar[bool] = False
    """True if advantages are normalized to mean 0 and standard deviation 1 over the tokens of a step."""

    drops_singletons: ClassVar[bool] = False
    """True if a trajectory is left out when failures have left it alone in its group."""

    constant_over_row: ClassVar[bool] = False
    """True if the tokens of a row share an advantage that depends on the sums of rewards alone, not on single tokens.

    Then a step's batch has one position per row, which stands for its trained tokens, and no tokens are read.
    """

    # ---- advantages ----

    def advantages(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return advantages and returns, both of shape (rows, response tokens).

        The estimator sees the rows of a trajectory as one sequence of tokens.
        """
        index = rows.index
        groups_K = [group_of(rows.keys[row]) for row in index.last_rows]
        values_KL = None if rows.values_RG is None else index.join(rows.values_RG)
        found = self.estimate(index.join(rows.counted_rewards(index)), index.join(rows.mask_RG), groups_K, values_KL)
        advantages_RG, returns_RG = (index.split(of_tokens_KL, rows.mask_RG.shape[1]) for of_tokens_KL in found)
        return advantages_RG, returns_RG

    def estimate(
        self, rewards_KL: Tensor, mask_KL: Tensor, groups_K: Sequence[str], values_KL: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return advantages and returns of every token, both of shape (trajectories, tokens).

        Arguments have the same shape, except `groups_K`, the group of each trajectory. Advantages are 0 outside the
        mask. Failed trajectories are not included: the others are compared among themselves, and one that is alone in
        its group has no advantage. Everything is computed in float32 or float64, also from narrower arguments.
        """
        rewards_KL, values_KL = at_least_float32(rewards_KL), None if values_KL is None else at_least_float32(values_KL)
        mask_KL = mask_KL.to(rewards_KL.dtype)
        rewards_KL = move_to_trained_tokens(rewards_KL, mask_KL)
        if self.drops_singletons:
            mask_KL = mask_KL * ~singleton_groups(groups_K)[:, None]
        if self.normalizes_over_step and mask_KL.sum() < 2:
            # A single number has no standard deviation, and verl would raise an exception.
            return torch.zeros_like(rewards_KL), torch.zeros_like(rewards_KL) if values_KL is None else values_KL
        advantages_KL, returns_KL = self.estimate_tokens(rewards_KL, mask_KL, groups_K, values_KL)
        return advantages_KL * mask_KL, returns_KL * mask_KL

    def estimate_tokens(
        self, rewards_KL: Tensor, mask_KL: Tensor, groups_K: Sequence[str], values_KL: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return advantages and returns, both of shape (trajectories, tokens), by the algorithm's formula.

        Rewards are 0 at tokens that are not trained.
        """
        raise NotImplementedError

    # ---- what goes with it ----

    def penalties(self, lengths_R: Tensor, limit: int) -> Tensor:
        """Return what is added to each row's reward for its length, shape (rows,); `limit` is the maximum length."""
        return torch.zeros_like(lengths_R, dtype=torch.float32)

    def metrics(self, rows: Rows, penalties_R: Tensor) -> dict[str, float]:
        """Return the algorithm's own metrics of a step."""
        return {}

    @property
    def critic_only_steps(self) -> int:
        """Number of first steps in which only the critic is trained."""
        return 0

    def verl_settings(self, job: AgentTrainingJob) -> VerlSettings:
        """Return the settings of mini-batches, loss average and estimator, without a critic, by verl's dotted names."""
        return {
            "actor_rollout_ref.actor.ppo_mini_batch_size": self.minibatch_tasks(job),
            "actor_rollout_ref.actor.loss_agg_mode": LOSS_AVERAGES[self.settings.loss_average],
            "algorithm.adv_estimator": self.estimator,
            "algorithm.norm_adv_by_std_in_grpo": True,
            "algorithm.gamma": 1.0,
            "critic.enable": False,
        }

    def minibatch_tasks(self, job: AgentTrainingJob) -> int:
        """Return the tasks per mini-batch; verl multiplies them by the trajectories per task."""
        return self.settings.minibatch_tasks or job.spec.tasks_per_step
