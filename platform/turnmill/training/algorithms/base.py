"""The base classes of algorithms.

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
from turnmill.training.advantages.index import TrajectoryIndex, group_of
from turnmill.training.advantages.rows import Rows
from turnmill.training.plugins import NoOptions

OwnSettings = TypeVar("OwnSettings", bound=TypedSection)
OwnTrajectorySettings = TypeVar("OwnTrajectorySettings", bound=TrajectoryAlgorithmSettings)

LOSS_AVERAGES = {"token": "token-mean", "trajectory": "seq-mean-token-mean"}


@dataclass(frozen=True, slots=True)
class Sampler:
    """The replay buffer that hands the rows of a step to the trainer, in place of verl's own."""

    path: str
    """The class, as `package.module:Class`."""

    arguments: Mapping[str, object] = field(default_factory=dict)
    """What it finds in `sampler_kwargs`."""


class Algorithm(Generic[OwnSettings]):
    """How a policy learns from the rows of a step."""

    options_model: ClassVar[type[Settings]] = NoOptions
    """The model of `algorithm.options`, for algorithms from outside this package."""

    def __init__(self, settings: OwnSettings) -> None:
        self.settings = settings
        self.options: Settings = read_options(
            self.options_model, getattr(settings, "options", {}), "algorithm.options", owner=settings.type
        )

    def verl_settings(self, job: AgentTrainingJob) -> VerlSettings:
        """Return what the algorithm asks of verl's configuration, by verl's dotted names."""
        raise NotImplementedError

    def sampler(self, *, is_async: bool) -> Sampler | None:
        """Return the replay buffer; None for verl's own, which suffices where rollout and learning take turns."""
        return Sampler("turnmill.training.replay_buffers:StepReplayBuffer") if is_async else None


class TrajectoryAlgorithm(Algorithm[OwnTrajectorySettings]):
    """An algorithm over whole trajectories: an estimator, and what goes with it."""

    estimator: ClassVar[str] = "grpo"
    """The estimator that verl is told of; turnmill computes advantages in its place."""

    normalizes_over_step: ClassVar[bool] = False
    """True where advantages are brought to mean 0 and deviation 1 over the tokens of a step."""

    drops_singletons: ClassVar[bool] = False
    """True where a trajectory that failures left alone in its group has no part in the step."""

    # ---- advantages ----

    def advantages(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Return advantages and returns, both of shape (rows, response tokens).

        The estimator sees the rows of a trajectory as one sequence of tokens.
        """
        index = TrajectoryIndex.of(rows.keys, rows.lengths_R)
        groups_K = [group_of(rows.keys[row]) for row in index.last_rows]
        values_KL = None if rows.values_RG is None else index.join(rows.values_RG)
        found = self.estimate(index.join(rows.counted_rewards(index)), index.join(rows.mask_RG), groups_K, values_KL)
        advantages_RG, returns_RG = (index.split(of_tokens_KL, rows.mask_RG.shape[1]) for of_tokens_KL in found)
        return advantages_RG, returns_RG

    def estimate(
        self, rewards_KL: Tensor, mask_KL: Tensor, groups_K: Sequence[str], values_KL: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return advantages and returns of every token, both of shape (trajectories, tokens).

        Advantages are 0 where the mask is. Failed trajectories are not among these: the others are compared with each
        other alone, and one that is left alone in its group has no advantage.
        """
        mask_KL = mask_KL.to(rewards_KL.dtype)
        rewards_KL = move_to_trained_tokens(rewards_KL, mask_KL)
        if self.drops_singletons:
            mask_KL = mask_KL * ~singleton_groups(groups_K)[:, None]
        if self.normalizes_over_step and mask_KL.sum() < 2:
            # One number has no deviation, and verl would raise.
            return torch.zeros_like(rewards_KL), torch.zeros_like(rewards_KL) if values_KL is None else values_KL
        advantages_KL, returns_KL = self.estimate_tokens(rewards_KL, mask_KL, groups_K, values_KL)
        return advantages_KL * mask_KL, returns_KL * mask_KL

    def estimate_tokens(
        self, rewards_KL: Tensor, mask_KL: Tensor, groups_K: Sequence[str], values_KL: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return advantages and returns; rewards stand at tokens that are trained. The formula of the algorithm."""
        raise NotImplementedError

    # ---- what goes with it ----

    def penalties(self, lengths_R: Tensor, limit: int) -> Tensor:
        """Return what is added to the reward of each row for its length, where a response may have `limit` tokens."""
        return torch.zeros_like(lengths_R, dtype=torch.float32)

    def metrics(self, rows: Rows, penalties_R: Tensor) -> dict[str, float]:
        """Return metrics of the algorithm's own, of a step."""
        return {}

    @property
    def critic_only_steps(self) -> int:
        """The first steps of a run, in which the policy does not learn."""
        return 0

    def verl_settings(self, job: AgentTrainingJob) -> VerlSettings:
        """Return mini-batches, the average of the loss, and the estimator, without a critic."""
        return {
            "actor_rollout_ref.actor.ppo_mini_batch_size": self.minibatch_tasks(job),
            "actor_rollout_ref.actor.loss_agg_mode": LOSS_AVERAGES[self.settings.loss_average],
            "algorithm.adv_estimator": self.estimator,
            "algorithm.norm_adv_by_std_in_grpo": True,
            "algorithm.gamma": 1.0,
            "critic.enable": False,
        }

    def minibatch_tasks(self, job: AgentTrainingJob) -> int:
        """Return the tasks of a mini-batch, which verl multiplies by the trajectories of each."""
        return self.settings.minibatch_tasks or job.spec.tasks_per_step
