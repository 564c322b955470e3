"""What the run may use."""

from typing import Literal

from pydantic import Field

from turnmill.jobs.settings import Settings, Word


class TrainResources(Settings):
    """Where the weights are updated."""

    accelerator: Word | None = None
    """Kind of GPU, for example `H100`; on one machine it is ignored."""

    nodes: int = Field(default=1, ge=1, le=1024)
    """Machines that train together."""

    gpus_per_node: int = Field(default=1, ge=1, le=64)
    """GPUs on each of them; without GPUs, processes that train together."""


class RolloutResources(Settings):
    """Where responses are generated."""

    accelerator: Word | None = None
    """Kind of GPU, for example `A40`; on one machine it is ignored."""

    replicas: int = Field(default=1, ge=1, le=1024)
    """Inference engines that run side by side."""


class ResourcesSettings(Settings):
    """Devices and processes."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes CUDA where there is one and the CPU elsewhere."""

    train: TrainResources = TrainResources()
    """Where the weights are updated."""

    rollout: RolloutResources = RolloutResources()
    """Where responses are generated."""

    agent_loop_workers: int = Field(default=1, ge=1, le=256)
    """Processes that run agent loops."""
