"""The settings of algorithms over whole trajectories."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from turnmill.jobs.rollout_correction import RolloutCorrection
from turnmill.jobs.settings import Settings, TypedSection

Gamma = Annotated[float, Field(ge=0, le=1)]
AdamBetas = Annotated[tuple[Annotated[float, Field(ge=0, lt=1)], ...], Field(strict=False, min_length=2, max_length=2)]


class KlSettings(Settings):
    """KL penalty for moving away from the initial policy."""

    coefficient: float = Field(default=0.001, ge=0, le=100)
    """Weight of the KL penalty; 0 turns it off."""

    # Without its own alias, `in` could not be a name in Python.
    applied_in: Literal["reward", "loss"] = Field(default="reward", alias="in")
    """`reward` subtracts the penalty from the rewards of tokens, `loss` adds it to the policy's loss."""

    type: Literal["fixed", "adaptive"] = "fixed"
    """`fixed` keeps the coefficient, `adaptive` adjusts it so that the KL divergence approaches `target`."""

    target: float = Field(default=0.1, gt=0, le=1000)
    """KL divergence that `adaptive` aims at."""

    horizon: int = Field(default=10_000, ge=1, le=1_000_000_000)
    """Rows over which `adaptive` corrects the coefficient; a larger number corrects it more slowly."""

    @property
    def in_reward(self) -> bool:
        """True if rewards have a penalty."""
        return self.coefficient > 0 and self.applied_in == "reward"

    @property
    def in_loss(self) -> bool:
        """True if the policy's loss has a penalty."""
        return self.coefficient > 0 and self.applied_in == "loss"


class TrajectoryAlgorithmSettings(TypedSection):
    """The settings that all algorithms over whole trajectories share."""

    learns_from_turns: ClassVar[bool] = False

    clip_ratio: float = Field(default=0.2, gt=0, le=10)
    """PPO's clip range: a token's probability ratio is clipped to 1 ± this in the loss."""

    clip_ratio_high: float | None = Field(default=None, gt=0, le=10)
    """Upper clip range: the probability ratio is clipped to at most 1 + this; left out, `clipRatio`."""

    entropy_coefficient: float = Field(default=0.0, ge=0, le=10)
    """Weight of the entropy bonus in the policy's loss."""

    loss_average: Literal["token", "trajectory"] = "token"
    """Weighting of the loss: `token` weights all tokens of a mini-batch equally, `trajectory` all rows (a trajectory,
    or a turn of `verlog`) whatever their length."""

    actor_learning_rate: float = Field(default=1e-6, gt=0, le=1)
    """Learning rate of the policy."""

    learning_rate_schedule: Literal["constant", "cosine"] = "constant"
    """Schedule of the learning rates until the last step; `cosine` falls to 0."""

    weight_decay: float = Field(default=0.01, ge=0, le=10)
    """Weight decay of the optimizer."""

    adam_betas: AdamBetas = (0.9, 0.999)
    """Decay rates of the optimizer's averages (AdamW) of gradients and of their squares."""

    minibatch_tasks: int | None = Field(default=None, ge=1, le=1_000_000)
    """Tasks per update of the weights, each with all of its trajectories; left out, all tasks of the step."""

    epochs: int = Field(default=1, ge=1, le=100)
    """Passes over the trajectories of a step."""

    gradient_clip: float = Field(default=1.0, gt=0, le=1_000_000)
    """Maximum norm of the gradients."""

    rollout_correction: RolloutCorrection = RolloutCorrection()
    """Correction for rows that another policy sampled than the one that learns from them."""

    @property
    def max_batches(self) -> int:
        """Batches of tasks that a step may request, the first one included."""
        return 1


class Ppo(TrajectoryAlgorithmSettings):
    """PPO: a critic values every token, and GAE runs over all tokens of a trajectory that the policy generated."""

    implementation = "turnmill.training.algorithms.ppo:PpoAlgorithm"

    type: Literal["ppo"] = "ppo"
    """`ppo`: GAE over the tokens of a trajectory, with a critic."""

    gamma: Gamma = 1.0
    """Discount from token to token."""

    gae_lambda: Gamma = 1.0
    """GAE's λ: 0 gives one-step advantage estimates, 1 estimates from the whole return."""

    kl: KlSettings = KlSettings()
    """KL penalty for moving away from the initial policy."""

    value_clip: float = Field(default=0.5, gt=0, le=1000)
    """Clip range of the critic's values around those before the update."""

    critic_learning_rate: float = Field(default=1e-5, gt=0, le=1)
    """Learning rate of the critic."""

    critic_warmup_steps: int = Field(default=0, ge=0, le=1_000_000)
    """First steps of the run, in which only the critic is trained."""


class Grpo(TrajectoryAlgorithmSettings):
    """GRPO: a trajectory's reward compared with its group's, without a critic."""

    implementation = "turnmill.training.algorithms.grpo:GrpoAlgorithm"

    type: Literal["grpo"] = "grpo"
    """`grpo`: a trajectory's reward minus its group's mean, divided by the group's standard deviation."""

    baseline: Literal["group", "step"] = "group"
    """Trajectories whose mean reward is the baseline: `group` those of the same task, `step` all of the step."""

    normalise: bool = True
    """Divide advantages by the standard deviation of the compared rewards."""

    kl: KlSettings = KlSettings()
    """KL penalty for moving away from the initial policy."""


class Rloo(TrajectoryAlgorithmSettings):
    """RLOO: a trajectory's reward minus the mean of the others in its group."""

    implementation = "turnmill.training.algorithms.rloo:RlooAlgorithm"

    type: Literal["rloo"] = "rloo"
    """`rloo`: a trajectory's reward minus the mean of the others in its group."""

    kl: KlSettings = KlSettings()
    """KL penalty for moving away from the initial policy."""


class ReinforcePlusPlus(TrajectoryAlgorithmSettings):
    """REINFORCE++: discounted rewards, whitened (mean 0, standard deviation 1) over all tokens of a step."""

    implementation = "turnmill.training.algorithms.reinforce_plus_plus:ReinforcePlusPlusAlgorithm"

    type: Literal["reinforce_plus_plus"] = "reinforce_plus_plus"
    """`reinforce_plus_plus`: discounted rewards, whitened over a step, without groups."""

    gamma: Gamma = 1.0
    """Discount from token to token."""

    kl: KlSettings = KlSettings()
    """KL penalty for moving away from the initial policy."""


class ReinforcePlusPlusBaseline(TrajectoryAlgorithmSettings):
    """REINFORCE++ with a baseline: the group's mean is subtracted before whitening over the step."""

    implementation = "turnmill.training.algorithms.reinforce_plus_plus:ReinforcePlusPlusBaselineAlgorithm"

    type: Literal["reinforce_plus_plus_baseline"] = "reinforce_plus_plus_baseline"
    """`reinforce_plus_plus_baseline`: reward minus the group's mean, then whitened over a step."""

    kl: KlSettings = KlSettings()
    """KL penalty for moving away from the initial policy."""


class DynamicSampling(Settings):
    """Replacement of tasks whose trajectories all have the same reward, as they give no learning signal."""

    max_batches: int = Field(default=4, ge=1, le=1000)
    """Batches of tasks that a step may request, the first one included; 1 replaces no tasks. Tasks still missing after
    that stay missing."""


class Overlong(Settings):
    """Length penalty near the limit of the response length (DAPO's soft overlong punishment)."""

    tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    """Number of tokens before the limit over which the penalty grows from 0 to `penalty`; left out, there is no
    penalty."""

    penalty: float = Field(default=1.0, gt=0, le=1000)
    """Subtracted from the reward of a response at the limit."""


class Dapo(TrajectoryAlgorithmSettings):
    """DAPO: GRPO with a higher upper clip range, dynamic sampling and a length penalty, without a KL penalty."""

    implementation = "turnmill.training.algorithms.dapo:DapoAlgorithm"

    type: Literal["dapo"] = "dapo"
    """`dapo`: GRPO with DAPO's clipping, dynamic sampling and overlong penalty."""

    clip_ratio_high: float | None = Field(default=0.28, gt=0, le=10)
    """Upper clip range: the probability ratio is clipped to at most 1 + this; null uses `clipRatio`."""

    normalise: bool = True
    """Divide advantages by the standard deviation of the group's rewards."""

    dynamic_sampling: DynamicSampling = DynamicSampling()
    """Replacement of tasks whose trajectories all have the same reward."""

    overlong: Overlong = Overlong()
    """Length penalty near the limit of the response length."""

    @property
    def kl(self) -> KlSettings:
        """No KL penalty."""
        return KlSettings(coefficient=0.0)

    @property
    def max_batches(self) -> int:
        """Batches of tasks that a step may request, the first one included."""
        return self.dynamic_sampling.max_batches


class GigPo(TrajectoryAlgorithmSettings):
    """GiGPO: episodes compared within their group, and turns compared with the group's turns from the same state."""

    implementation = "turnmill.training.algorithms.gigpo:GigPoAlgorithm"

    type: Literal["gigpo"] = "gigpo"
    """`gigpo`: episodes compared within their group, turns within the same state of the environment."""

    gamma: Gamma = 0.95
    """Discount from turn to turn in the return that turns are compared by."""

    step_weight: float = Field(default=1.0, ge=0, le=1000)
    """Weight of the turns' advantages relative to the episodes'."""

    normalise: bool = True
    """Divide advantages by the standard deviation of the compared returns."""

    kl: KlSettings = KlSettings()
    """KL penalty for moving away from the initial policy."""
