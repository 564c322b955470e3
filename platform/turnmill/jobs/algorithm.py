"""The table of algorithms: a line for each. How they learn is in `turnmill.training.algorithms`."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, Tag

from turnmill.jobs.fine_tuning import Sft
from turnmill.jobs.plugin_algorithm import PluginAlgorithm
from turnmill.jobs.rollout_correction import RolloutCorrection
from turnmill.jobs.settings import PLUGIN, Settings, TypedSection, by_type
from turnmill.jobs.trajectory_algorithms import (
    AdamBetas,
    Dapo,
    GigPo,
    Grpo,
    KlSettings,
    Ppo,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    Rloo,
)


class CriticWarmup(Settings):
    """Training of the critic alone, before the policy is trained."""

    batches: int = Field(default=40, ge=0, le=10_000)
    """Batches of `training.turnsPerStep` turns gathered once for the warm-up; 0 leaves it out."""

    steps: int = Field(default=5, ge=0, le=10_000)
    """Updates of the critic alone on these turns; 0 leaves the warm-up out."""

    turns_per_step: int | None = Field(default=None, ge=1, le=10_000_000)
    """Turns drawn for each of these updates; left out, one tenth of those gathered."""


class TurnPpo(TypedSection):
    """Turn-level PPO: discounts within and between turns, and the losses."""

    implementation = "turnmill.training.algorithms.turn_ppo:TurnPpoAlgorithm"
    learns_from_turns: ClassVar[bool] = True

    type: Literal["turn_ppo"] = "turn_ppo"
    """`turn_ppo`: PPO with one row per turn and two discounts."""

    token_gamma: float = Field(default=1.0, ge=0, le=1)
    """Discount from token to token of a turn."""

    token_lambda: float = Field(default=1.0, ge=0, le=1)
    """GAE's λ within a turn: 0 gives one-step advantage estimates, 1 estimates from the whole return."""

    step_gamma: float = Field(default=0.99, ge=0, le=1)
    """Discount from turn to turn."""

    step_lambda: float = Field(default=0.95, ge=0, le=1)
    """GAE's λ across turns."""

    critic_warmup: CriticWarmup = CriticWarmup()
    """Training of the critic alone, before the policy is trained."""

    kl: KlSettings = KlSettings()
    """KL penalty for moving away from the initial policy."""

    first_token_value_weight: float = Field(default=3.0, gt=0, le=1000)
    """Weight of a turn's first value in the critic's loss; it carries the estimate across turns."""

    clip_ratio: float = Field(default=0.2, gt=0, le=10)
    """PPO's clip range: a token's probability ratio is clipped to 1 ± this in the loss."""

    value_clip: float = Field(default=0.5, gt=0, le=1000)
    """Clip range of the critic's values around those before the update."""

    entropy_coefficient: float = Field(default=0.001, ge=0, le=10)
    """Weight of the entropy bonus in the policy's loss."""

    actor_learning_rate: float = Field(default=1e-6, gt=0, le=1)
    """Learning rate of the policy."""

    critic_learning_rate: float = Field(default=1e-5, gt=0, le=1)
    """Learning rate of the critic."""

    learning_rate_schedule: Literal["constant", "cosine"] = "constant"
    """Schedule of the learning rates until the last step; `cosine` falls to 0."""

    weight_decay: float = Field(default=0.01, ge=0, le=10)
    """Weight decay of the optimizers of policy and critic."""

    adam_betas: AdamBetas = (0.9, 0.999)
    """Decay rates of the optimizers' averages (AdamW) of gradients and of their squares."""

    minibatch_turns: int = Field(default=128, ge=1, le=1_000_000)
    """Turns per update of the weights."""

    epochs: int = Field(default=1, ge=1, le=100)
    """Passes over the turns of a step."""

    gradient_clip: float = Field(default=1.0, gt=0, le=1_000_000)
    """Maximum norm of the gradients."""

    rollout_correction: RolloutCorrection = RolloutCorrection()
    """Correction for rows that another policy sampled than the one that learns from them."""

    whiten: bool = True
    """Normalize advantages to mean 0 and standard deviation 1 over a step's response tokens."""


AlgorithmSettings = Annotated[
    Annotated[TurnPpo, Tag("turn_ppo")]
    | Annotated[Ppo, Tag("ppo")]
    | Annotated[Grpo, Tag("grpo")]
    | Annotated[Rloo, Tag("rloo")]
    | Annotated[ReinforcePlusPlus, Tag("reinforce_plus_plus")]
    | Annotated[ReinforcePlusPlusBaseline, Tag("reinforce_plus_plus_baseline")]
    | Annotated[Dapo, Tag("dapo")]
    | Annotated[GigPo, Tag("gigpo")]
    | Annotated[Sft, Tag("sft")]
    | Annotated[PluginAlgorithm, Tag(PLUGIN)],
    by_type(TurnPpo),
]
"""The learning algorithm, selected by `type`."""
