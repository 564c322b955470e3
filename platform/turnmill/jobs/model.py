"""Settings of the model that is trained."""

from typing import Annotated

from pydantic import Field

from turnmill.jobs.settings import FilePath, Seed, Settings, Word


class WarmStart(Settings):
    """A tiny model, made without any download and taught by an expert's turns before training starts."""

    turns: int = Field(default=8000, ge=1, le=1_000_000)
    """Turns of the expert that the model is shown."""

    gradient_steps: int = Field(default=700, ge=1, le=100_000)
    """Updates of the weights while it imitates the expert."""

    min_gradient_steps: int = Field(default=0, ge=0, le=100_000)
    """Updates before the loss may end the imitation; for tasks whose loss tells little of what was learned."""

    action_noise: float = Field(default=0.75, ge=0, le=1)
    """Share of shown actions drawn at random instead of from the expert; it leaves something to learn."""

    malformed_share: float = Field(default=0.02, ge=0, le=1)
    """Share of shown responses that hold no action at all; it teaches what a mistake looks like."""

    learning_rate: float = Field(default=3e-3, gt=0, le=1)
    """Learning rate of the imitation."""

    batch_size: int = Field(default=64, ge=1, le=4096)
    """Turns per update of the imitation."""

    hidden_size: int = Field(default=64, ge=8, le=4096)
    """Width of the model."""

    layers: int = Field(default=2, ge=1, le=64)
    """Layers of the model."""

    heads: int = Field(default=2, ge=1, le=64)
    """Attention heads of a layer; they share the width between them."""

    max_loss: float = Field(default=0.16, gt=0, le=10)
    """Mean loss above which the imitation counts as failed."""

    seed: Seed = 0
    """Seed of the weights and of the expert's episodes."""


class Lora(Settings):
    """Train low-rank adapters of the policy and leave its own weights as they are; a critic trains all of its own."""

    rank: int = Field(default=16, ge=1, le=1024)
    """Rank of every adapter."""

    alpha: int = Field(default=32, ge=1, le=4096)
    """Scale of the adapters, divided by their rank."""

    target_modules: Annotated[tuple[Word, ...], Field(strict=False, min_length=1, max_length=64)] = ("all-linear",)
    """Names of the modules that get an adapter; `all-linear` means every linear layer."""


class ModelSettings(Settings):
    """The model that learns: either a folder or a warm start."""

    path: FilePath | None = None
    """Folder of a Hugging Face model and its tokenizer."""

    warm_start: WarmStart | None = None
    """Make a tiny model and teach it by imitation, once; it is kept and used again."""

    lora: Lora | None = None
    """Train adapters of the policy instead of all its weights."""
