"""Settings of supervised fine-tuning: as an algorithm of its own, and of a model before its training."""

from typing import ClassVar, Literal

from pydantic import Field

from turnmill.jobs.settings import FilePath, Seed, Settings, TypedSection
from turnmill.jobs.trajectory_algorithms import AdamBetas, KlSettings


class FineTuningSettings(Settings):
    """What is learned from, and how: the same for every use of fine-tuning."""

    data: FilePath | None = None
    """File of conversations, `.jsonl` or `.parquet`: `messages` in each row and, if there are any, `tools`."""

    from_run: FilePath | None = None
    """Folder of an earlier run, in place of `data`: the trajectories of its training are learned from, token by token.
    Its model must have the same vocabulary."""

    min_reward: float = Field(default=1.0, ge=-1_000_000, le=1_000_000)
    """Reward that a trajectory of `fromRun` must have at least."""

    max_length: int = Field(default=4096, ge=2, le=10_000_000)
    """Tokens of a row; longer ones are left out."""

    batch_size: int = Field(default=32, ge=1, le=1_000_000)
    """Rows per update of the weights."""

    learning_rate: float = Field(default=1e-5, gt=0, le=1)
    """Learning rate of the fine-tuning."""

    learning_rate_schedule: Literal["constant", "cosine"] = "constant"
    """Schedule of the learning rates until the last step; `cosine` falls to 0."""

    weight_decay: float = Field(default=0.01, ge=0, le=10)
    """Weight decay of the optimizer."""

    adam_betas: AdamBetas = (0.9, 0.999)
    """Decay rates of the optimizer's averages (AdamW) of gradients and of their squares."""

    gradient_clip: float = Field(default=1.0, gt=0, le=1_000_000)
    """Maximum norm of the gradients."""

    @property
    def source(self) -> str:
        """What is learned from, in a few words."""
        return self.data or f"trajectories of {self.from_run}"


class FineTune(FineTuningSettings):
    """Fine-tune the model before the training, once; later runs with the same settings and data use it again."""

    epochs: int = Field(default=1, ge=1, le=100)
    """Passes over the rows."""

    seed: Seed = 0
    """Seed of the order of rows, and of new adapters' weights."""


class Sft(FineTuningSettings, TypedSection):
    """Supervised fine-tuning: the model learns the answers of given conversations, without agent and environment."""

    implementation = "turnmill.training.sft.trainer:SftTrainer"
    learns_from_turns: ClassVar[bool] = False

    type: Literal["sft"] = "sft"
    """`sft`: supervised fine-tuning on conversations or on trajectories of an earlier run."""

    validation_data: FilePath | None = None
    """File of conversations like `data`, whose mean loss is measured before the first step, every
    `training.validation.every` steps and after the last."""

    epochs: int | None = Field(default=None, ge=1, le=100)
    """Passes over the rows, after which the run ends even if `training.steps` is larger; left out, as many as the steps
    take."""

    @property
    def kl(self) -> KlSettings:
        """No KL penalty."""
        return KlSettings(coefficient=0.0)
