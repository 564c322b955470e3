"""The settings of algorithms over whole trajectories."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from turnmill.jobs.settings import Settings, TypedSection

Gamma = Annotated[float, Field(ge=0, le=1)]


class KlSettings(Settings):
    """The penalty for drifting from the first policy."""

    coefficient: float = Field(default=0.001, ge=0, le=100)
    """Weight of the KL penalty in the reward; 0 leaves it out."""

    type: Literal["fixed", "adaptive"] = "fixed"
    """`fixed` keeps the coefficient, `adaptive` steers it towards `target`."""

    target: float = Field(default=0.1, gt=0, le=1000)
    """KL divergence that `adaptive` aims at."""

    horizon: int = Field(default=10_000, ge=1, le=1_000_000_000)
    """Turns over which `adaptive` corrects the coefficient."""


class TrajectoryAlgorithmSettings(TypedSection):
    """The settings that all algorithms over whole trajectories share."""

    learns_from_turns: ClassVar[bool] = False

    clip_ratio: float = Field(default=0.2, gt=0, le=10)
    """How far one update may move the probability of a token."""

    clip_ratio_high: float | None = Field(default=None, gt=0, le=10)
    """How far up one update may move it; left out, `clipRatio`."""

    entropy_coefficient: float = Field(default=0.0, ge=0, le=10)
    """Weight of the entropy bonus in the policy's loss."""

    loss_average: Literal["token", "trajectory"] = "token"
    """What counts alike in the loss: every token, or every row (a trajectory, or a turn of `verlog`) however long."""

    actor_learning_rate: float = Field(default=1e-6, gt=0, le=1)
    """Learning rate of the policy."""

    learning_rate_schedule: Literal["constant", "cosine"] = "constant"
    """Schedule of the learning rates until the last step; `cosine` falls to 0."""

    weight_decay: float = Field(default=0.0, ge=0, le=10)
    """Decay of the policy's weights."""

    minibatch_tasks: int | None = Field(default=None, ge=1, le=1_000_000)
    """Tasks per update of the weights, each with all of its trajectories; left out, all of the step."""

    epochs: int = Field(default=1, ge=1, le=100)
    """Times a step goes through its trajectories."""

    gradient_clip: float = Field(default=1.0, gt=0, le=1_000_000)
    """Norm to which gradients are cut."""

    @property
    def max_batches(self) -> int:
        """Times the tasks of a step are asked for, the first time included."""
        return 1


class Ppo(TrajectoryAlgorithmSettings):
    """PPO: a critic values every token, and GAE runs over all tokens of a trajectory that the policy generated."""

    implementation = "turnmill.training.algorithms.ppo:PpoAlgorithm"

    type: Literal["ppo"] = "ppo"
    """`ppo`: GAE over the tokens of a trajectory, with a critic."""

    gamma: Gamma = 1.0
    """Discount from token to token."""

    gae_lambda: Gamma = 1.0
    """Weight of longer advantage estimates."""

    kl: KlSettings = KlSettings()
    """The penalty for drifting from the first policy."""

    value_clip: float = Field(default=0.5, gt=0, le=1000)
    """Clip range of the critic's values around those before the update."""

    critic_learning_rate: float = Field(default=1e-5, gt=0, le=1)
    """Learning rate of the critic."""

    critic_warmup_steps: int = Field(default=0, ge=0, le=1_000_000)
    """First steps in which the critic learns alone."""


class Grpo(TrajectoryAlgorithmSettings):
    """GRPO: the reward of a trajectory against that of its group, without a critic."""

    implementation = "turnmill.training.algorithms.grpo:GrpoAlgorithm"

    type: Literal["grpo"] = "grpo"
    """`grpo`: a trajectory's reward against its group's mean, in standard deviations."""

    baseline: Literal["group", "step"] = "group"
    """Trajectories that a reward is compared with: those of the same task, or all of the step."""

    normalise: bool = True
    """Divide advantages by the standard deviation of what they are compared with."""

    kl: KlSettings = KlSettings()
    """The penalty for drifting from the first policy."""


class Rloo(TrajectoryAlgorithmSettings):
    """RLOO: the reward of a trajectory against the mean of the others of its group."""

    implementation = "turnmill.training.algorithms.rloo:RlooAlgorithm"

    type: Literal["rloo"] = "rloo"
    """`rloo`: a trajectory's reward against the mean of the others of its group."""

    kl: KlSettings = KlSettings()
    """The penalty for drifting from the first policy."""


class ReinforcePlusPlus(TrajectoryAlgorithmSettings):
    """REINFORCE++: discounted rewards, brought to mean 0 and deviation 1 over all tokens of a step."""

    implementation = "turnmill.training.algorithms.reinforce_plus_plus:ReinforcePlusPlusAlgorithm"

    type: Literal["reinforce_plus_plus"] = "reinforce_plus_plus"
    """`reinforce_plus_plus`: discounted rewards, whitened over a step, without groups."""

    gamma: Gamma = 1.0
    """Discount from token to token."""

    kl: KlSettings = KlSettings()
    """The penalty for drifting from the first policy."""


class ReinforcePlusPlusBaseline(TrajectoryAlgorithmSettings):
    """REINFORCE++ with a baseline: the group's mean is taken off before whitening over the step."""

    implementation = "turnmill.training.algorithms.reinforce_plus_plus:ReinforcePlusPlusBaselineAlgorithm"

    type: Literal["reinforce_plus_plus_baseline"] = "reinforce_plus_plus_baseline"
    """`reinforce_plus_plus_baseline`: less the group's mean, then whitened over a step."""

    kl: KlSettings = KlSettings()
    """The penalty for drifting from the first policy."""


class DynamicSampling(Settings):
    """Other tasks in place of those whose trajectories all have the same reward."""

    max_batches: int = Field(default=4, ge=1, le=1000)
    """Times the tasks of a step are filled up, the first time included; 1 takes tasks as they come. What is missing
    after that the step does without."""


class Overlong(Settings):
    """A soft limit on the length of responses, before the hard one."""

    tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    """Last tokens of the room for a response, in which the penalty grows from 0 to all of it; left out, there is
    none."""

    penalty: float = Field(default=1.0, gt=0, le=1000)
    """Taken from the reward where a response fills all of its room."""


class Dapo(TrajectoryAlgorithmSettings):
    """DAPO: GRPO with more room upwards, without KL; tasks with uniform rewards are replaced, long responses cost."""

    implementation = "turnmill.training.algorithms.dapo:DapoAlgorithm"

    type: Literal["dapo"] = "dapo"
    """`dapo`: GRPO with DAPO's clipping, dynamic sampling and overlong penalty."""

    clip_ratio_high: float | None = Field(default=0.28, gt=0, le=10)
    """How far up one update may move the probability of a token."""

    normalise: bool = True
    """Divide advantages by the standard deviation of their group."""

    dynamic_sampling: DynamicSampling = DynamicSampling()
    """Other tasks in place of those whose trajectories all have the same reward."""

    overlong: Overlong = Overlong()
    """A soft limit on the length of responses."""

    @property
    def kl(self) -> KlSettings:
        """No KL penalty."""
        return KlSettings(coefficient=0.0)

    @property
    def max_batches(self) -> int:
        """Times the tasks of a step are asked for, the first time included."""
        return self.dynamic_sampling.max_batches


class GigPo(TrajectoryAlgorithmSettings):
    """GiGPO: an episode against its group, and a turn against the turns of the group that began in the same state."""

    implementation = "turnmill.training.algorithms.gigpo:GigPoAlgorithm"

    type: Literal["gigpo"] = "gigpo"
    """`gigpo`: episodes compared within their group, turns within the same state of the environment."""

    gamma: Gamma = 0.95
    """Discount from turn to turn in what a turn is compared by."""

    step_weight: float = Field(default=1.0, ge=0, le=1000)
    """Weight of the comparison of turns beside that of episodes."""

    normalise: bool = True
    """Divide advantages by the standard deviation of what they are compared with."""

    kl: KlSettings = KlSettings()
    """The penalty for drifting from the first policy."""
