"""Settings of the model that is trained."""

from typing import Annotated

from pydantic import Field

from turnmill.jobs.fine_tuning import FineTune
from turnmill.jobs.settings import FilePath, Seed, Settings, Word


class WarmStart(Settings):
    """A tiny model, made without any download and trained to imitate an expert before training starts."""

    turns: int = Field(default=8000, ge=1, le=1_000_000)
    """Turns of the expert to imitate."""

    gradient_steps: int = Field(default=700, ge=1, le=100_000)
    """Updates of the weights during the imitation."""

    min_gradient_steps: int = Field(default=0, ge=0, le=100_000)
    """Updates before a low loss may end the imitation; for tasks whose loss says little about what was learned."""

    action_noise: float = Field(default=0.75, ge=0, le=1)
    """Share of actions drawn at random instead of from the expert; it leaves room for improvement."""

    malformed_share: float = Field(default=0.02, ge=0, le=1)
    """Share of responses without an action, so that training meets invalid responses too."""

    learning_rate: float = Field(default=3e-3, gt=0, le=1)
    """Learning rate of the imitation."""

    batch_size: int = Field(default=64, ge=1, le=4096)
    """Turns per update of the imitation."""

    hidden_size: int = Field(default=64, ge=8, le=4096)
    """Hidden size of the model."""

    layers: int = Field(default=2, ge=1, le=64)
    """Layers of the model."""

    heads: int = Field(default=2, ge=1, le=64)
    """Attention heads of a layer; they share the hidden size."""

    max_loss: float = Field(default=0.16, gt=0, le=10)
    """Mean loss above which the imitation counts as failed."""

    seed: Seed = 0
    """Seed of the weights and of the expert's episodes."""


class Lora(Settings):
    """Train low-rank adapters of the policy and freeze its own weights; a critic trains all of its own."""

    rank: int = Field(default=16, ge=1, le=1024)
    """Rank of each adapter."""

    alpha: int = Field(default=32, ge=1, le=4096)
    """Scale of the adapters; they are multiplied by `alpha` / `rank`."""

    target_modules: Annotated[tuple[Word, ...], Field(strict=False, min_length=1, max_length=64)] = ("all-linear",)
    """Names of the modules that get an adapter; `all-linear` means every linear layer."""


class ModelSettings(Settings):
    """The model to train: a folder or a warm start."""

    path: FilePath | None = None
    """Folder of a Hugging Face model and its tokenizer, or its name on the hub, such as `Qwen/Qwen2.5-3B-Instruct`. By
    name, it is taken from the local cache, or downloaded when the run starts, unless HF_HUB_OFFLINE is set."""

    warm_start: WarmStart | None = None
    """Make a tiny model by imitation, once; later runs with the same settings use it again."""

    fine_tune: FineTune | None = None
    """Fine-tune the model on conversations, or on trajectories of an earlier run, before the training starts."""

    lora: Lora | None = None
    """Train adapters of the policy instead of all its weights."""
