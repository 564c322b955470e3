"""Settings of the devices and processes of a run."""

from typing import Literal

from pydantic import Field

from turnmill.jobs.settings import Settings, Word

# Positive, so that Ray places a process on a machine with the accelerator; small, so that many processes fit there.
RESOURCE_SHARE = 1e-4


def ray_resource(accelerator: str) -> str:
    """Return Ray's name of the resource that machines with an accelerator offer."""
    return f"accelerator_type:{accelerator}"


class TrainResources(Settings):
    """Devices that update the weights."""

    accelerator: Word | None = None
    """GPU type, for example `H100`, as the Ray cluster offers it (`accelerator_type:H100`); left out, any. Ignored on
    one machine."""

    nodes: int = Field(default=1, ge=1, le=1024)
    """Machines to train on."""

    gpus_per_node: int = Field(default=1, ge=1, le=64)
    """GPUs per machine; without GPUs, training processes."""

    offload: Literal["none", "optimizer", "all"] | None = None
    """What waits in the machine's memory between updates: the optimizer's state, or the weights as well. Left out, as
    little as the GPUs' memory demands. Ignored without GPUs."""

    sequence_parallel: int = Field(default=1, ge=1, le=64)
    """GPUs that share each row (Ulysses); more than 1 needs flash attention. Ignored without GPUs."""

    micro_batch_tokens: int | None = Field(default=None, ge=1, le=10_000_000)
    """Tokens of a micro-batch on each GPU, at least those of the longest row; left out, verl's 16,384, fewer where the
    GPUs' memory demands it, or as many as the longest row has."""

    chunked_logits: bool = True
    """Compute log-probs and entropy from a few logits at a time; false keeps those of a whole micro-batch. Ignored
    without GPUs."""


class RolloutResources(Settings):
    """Devices that generate responses."""

    accelerator: Word | None = None
    """GPU type for `training.mode: separate_async`, for example `A40`; in the other modes rollout uses the devices of
    `train`."""

    replicas: int = Field(default=1, ge=1, le=1024)
    """Inference engines for `training.mode: separate_async`, each with GPUs of its own; in the other modes, the GPUs of
    `train` have as many as fit."""

    tensor_parallel: int | None = Field(default=None, ge=1, le=64)
    """GPUs of an engine, all in one machine, which share every layer; left out, as few as hold the model, and 1 in
    `separate_async`."""

    gpu_memory_share: float | None = Field(default=None, gt=0, le=1)
    """Share of a GPU's memory for an engine's weights and cache; left out, 0.85 on GPUs of its own, and beside training
    0.5, or what the GPUs' memory allows. Ignored without GPUs."""

    max_sequences: int | None = Field(default=None, ge=1, le=65_536)
    """Responses that an engine generates at once; left out, verl's 256, and 128 without GPUs."""

    dtype: Literal["bfloat16", "float16", "float32"] | None = None
    """Type in which engines compute; left out, bfloat16, and float32 without GPUs."""


class ResourcesSettings(Settings):
    """Devices and processes."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` uses CUDA if it is available, and the CPU otherwise."""

    train: TrainResources = TrainResources()
    """Devices that update the weights."""

    rollout: RolloutResources = RolloutResources()
    """Devices that generate responses."""

    agent_loop_workers: int = Field(default=1, ge=1, le=256)
    """Processes that run agent loops."""
