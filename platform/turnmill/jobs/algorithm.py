"""How the policy learns."""

from typing import Annotated, Literal

from pydantic import Field, Tag

from turnmill.jobs.settings import Settings, by_type


class CriticWarmup(Settings):
    """Training of the critic alone, before the policy moves."""

    batches: int = Field(default=40, ge=0, le=10_000)
    """Batches of `training.turnsPerStep` turns gathered once for the warm-up; 0 leaves it out."""

    steps: int = Field(default=5, ge=0, le=10_000)
    """Updates of the critic alone on these turns; 0 leaves the warm-up out."""

    turns_per_step: int | None = Field(default=None, ge=1, le=10_000_000)
    """Turns drawn for each of these updates; left out, one tenth of those gathered."""


class KlSettings(Settings):
    """What drifting from the first policy costs."""

    coefficient: float = Field(default=0.001, ge=0, le=100)
    """Weight of the KL penalty in the reward; 0 leaves it out."""

    type: Literal["fixed", "adaptive"] = "fixed"
    """`fixed` keeps the coefficient, `adaptive` steers it towards `target`."""

    target: float = Field(default=0.1, gt=0, le=1000)
    """KL divergence that `adaptive` aims at."""

    horizon: int = Field(default=10_000, ge=1, le=1_000_000_000)
    """Turns over which `adaptive` corrects the coefficient."""


class TurnPpo(Settings):
    """Turn-level PPO: discounts within and between turns, and the losses."""

    type: Literal["turn_ppo"] = "turn_ppo"
    """`turn_ppo`: PPO with one row per turn and two discounts."""

    token_gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount from token to token of a turn."""

    token_lambda: float = Field(default=1.0, ge=0, le=1)
    """Weight of longer advantage estimates within a turn."""

    step_gamma: float = Field(default=0.99, ge=0, le=1)
    """Discount from turn to turn."""

    step_lambda: float = Field(default=0.95, ge=0, le=1)
    """Weight of longer advantage estimates across turns."""

    critic_warmup: CriticWarmup = CriticWarmup()
    """Training of the critic alone, before the policy moves."""

    kl: KlSettings = KlSettings()
    """What drifting from the first policy costs."""

    first_token_value_weight: float = Field(default=3.0, gt=0, le=1000)
    """Weight of a turn's first value in the critic's loss; it carries the estimate across turns."""

    clip_ratio: float = Field(default=0.2, gt=0, le=10)
    """How far one update may move the probability of a token."""

    value_clip: float = Field(default=0.5, gt=0, le=1000)
    """How far one update may move a value."""

    entropy_coefficient: float = Field(default=0.001, ge=0, le=10)
    """Weight of the entropy bonus in the policy's loss."""

    actor_learning_rate: float = Field(default=1e-6, gt=0, le=1)
    """Learning rate of the policy."""

    critic_learning_rate: float = Field(default=1e-5, gt=0, le=1)
    """Learning rate of the critic."""

    learning_rate_schedule: Literal["constant", "cosine"] = "constant"
    """How the learning rates change until the last step; `cosine` falls to 0."""

    weight_decay: float = Field(default=0.0, ge=0, le=10)
    """Decay of the weights of policy and critic."""

    minibatch_turns: int = Field(default=128, ge=1, le=1_000_000)
    """Turns per update of the weights."""

    epochs: int = Field(default=1, ge=1, le=100)
    """Times a step goes through its turns."""

    gradient_clip: float = Field(default=1.0, gt=0, le=1_000_000)
    """Norm to which gradients are cut."""

    whiten: bool = True
    """Bring advantages to mean 0 and deviation 1 over a step's response tokens."""


class Grpo(Settings):
    """GRPO over whole trajectories: the reward of the outcome against that of the group, without a critic."""

    type: Literal["grpo"] = "grpo"
    """`grpo`: a trajectory's reward against its group's mean, for agents of type `tool`."""

    baseline: Literal["group", "step"] = "group"
    """What a reward is compared with: the trajectories of the same task, or all of the step."""

    normalise: bool = True
    """Divide advantages by the standard deviation of what they are compared with."""

    kl: KlSettings = KlSettings()
    """What drifting from the first policy costs."""

    clip_ratio: float = Field(default=0.2, gt=0, le=10)
    """How far one update may move the probability of a token."""

    entropy_coefficient: float = Field(default=0.0, ge=0, le=10)
    """Weight of the entropy bonus in the policy's loss."""

    loss_average: Literal["token", "trajectory"] = "token"
    """What counts alike in the loss: every token, or every trajectory however long."""

    actor_learning_rate: float = Field(default=1e-6, gt=0, le=1)
    """Learning rate of the policy."""

    learning_rate_schedule: Literal["constant", "cosine"] = "constant"
    """How the learning rates change until the last step; `cosine` falls to 0."""

    weight_decay: float = Field(default=0.0, ge=0, le=10)
    """Decay of the policy's weights."""

    minibatch_tasks: int | None = Field(default=None, ge=1, le=1_000_000)
    """Tasks per update of the weights, each with all of its trajectories; left out, all of the step."""

    epochs: int = Field(default=1, ge=1, le=100)
    """Times a step goes through its trajectories."""

    gradient_clip: float = Field(default=1.0, gt=0, le=1_000_000)
    """Norm to which gradients are cut."""


AlgorithmSettings = Annotated[Annotated[TurnPpo, Tag("turn_ppo")] | Annotated[Grpo, Tag("grpo")], by_type(TurnPpo)]
"""How the policy learns; `type` says which way."""
