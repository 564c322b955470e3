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


class RolloutResources(Settings):
    """Devices that generate responses."""

    accelerator: Word | None = None
    """GPU type for `training.mode: separate_async`, for example `A40`; in the other modes rollout uses the devices of
    `train`."""

    replicas: int = Field(default=1, ge=1, le=1024)
    """Inference engines for `training.mode: separate_async`, each with a GPU of its own; the other modes have one per
    GPU of `train`."""


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
