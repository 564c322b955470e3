"""What the run may use."""

from typing import Literal

from pydantic import Field

from turnmill.jobs.settings import Settings, Word

# Enough of an accelerator's resource to be put where it is, and little enough for everybody.
RESOURCE_SHARE = 1e-4


def ray_resource(accelerator: str) -> str:
    """Ray's name of the resource that every machine with an accelerator has."""
    return f"accelerator_type:{accelerator}"


class TrainResources(Settings):
    """Where the weights are updated."""

    accelerator: Word | None = None
    """Kind of GPU, for example `H100`, as the Ray cluster offers it (`accelerator_type:H100`); left out, any. On one
    machine it is ignored."""

    nodes: int = Field(default=1, ge=1, le=1024)
    """Machines that train together."""

    gpus_per_node: int = Field(default=1, ge=1, le=64)
    """GPUs on each of them; without GPUs, processes that train together."""


class RolloutResources(Settings):
    """Where responses are generated."""

    accelerator: Word | None = None
    """Kind of GPU for `training.mode: separate_async`, for example `A40`; in the other modes rollout shares the
    devices of `train`."""

    replicas: int = Field(default=1, ge=1, le=1024)
    """Inference engines side by side in `training.mode: separate_async`, each with a GPU of its own; the other modes
    have one per GPU of `train`."""


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
