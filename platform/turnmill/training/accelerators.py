"""Devices of a job: how many, on machines with which accelerator, and whether a Ray cluster has them."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

from turnmill.core.errors import RunFailedError
from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.resources import RESOURCE_SHARE, ray_resource

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

PREFIX = ray_resource("")
# verl reserves so many logical CPUs beside every GPU, for the processes that share it.
CPUS_PER_TRAINING_GPU, CPUS_PER_ENGINE_GPU = 3, 2
CPUS_PER_REWARD_GPU = 1
FREED_SECONDS = 30.0
REWARD_MODEL = "spec.rewardModel"


class RayNode(TypedDict):
    """Fields of an entry of `ray.nodes()` that this module reads."""

    Alive: bool
    Resources: dict[str, float]


@dataclass(frozen=True, slots=True)
class Demand:
    """Machines of one kind that a job needs at the same time."""

    field: str
    """Section of the job that requests them."""

    machines: int
    gpus: int
    """GPUs per machine."""

    cpus_per_gpu: int
    accelerator: str | None = None

    @property
    def bundle(self) -> dict[str, float]:
        """Resources that verl reserves for one GPU, by Ray's names."""
        bundle: dict[str, float] = {"CPU": self.cpus_per_gpu, "GPU": 1}
        return bundle if self.accelerator is None else bundle | {ray_resource(self.accelerator): RESOURCE_SHARE}

    def __str__(self) -> str:
        of = f" ({self.accelerator})" if self.accelerator else ""
        return f"{self.machines} machine{'s' * (self.machines > 1)} with {self.gpus} GPU{'s' * (self.gpus > 1)}{of}"


def demands(job: AgentTrainingJob) -> tuple[Demand, ...]:
    """Return the machines that a job needs to start: for training, for rollout in `separate_async`, for rewards."""
    train, rollout, reward = job.spec.resources.train, job.spec.resources.rollout, job.spec.reward_model
    needed = [
        Demand("spec.resources.train", train.nodes, train.gpus_per_node, CPUS_PER_TRAINING_GPU, train.accelerator)
    ]
    if job.spec.training.mode == "separate_async":
        gpus = job.spec.gpus_per_engine
        needed.append(
            Demand("spec.resources.rollout", rollout.replicas, gpus, CPUS_PER_ENGINE_GPU, rollout.accelerator)
        )
    if reward is not None:
        gpus = reward.tensor_parallel
        needed.append(Demand(REWARD_MODEL, reward.replicas, gpus, CPUS_PER_REWARD_GPU, reward.accelerator))
    return tuple(needed)


def local_resources(job: AgentTrainingJob, *, logical_gpus: bool, cpus: int) -> dict[str, object]:
    """Return arguments of `ray.init` for a cluster of this machine only, which then offers the job's accelerators."""
    asked = demands(job)
    reserved = sum(each.machines * each.gpus * each.cpus_per_gpu for each in asked)
    return {
        "num_cpus": max(16, cpus, 8 + reserved + job.spec.resources.agent_loop_workers),
        "num_gpus": sum(each.machines * each.gpus for each in asked) if logical_gpus else None,
        "resources": {ray_resource(each.accelerator): 1 for each in asked if each.accelerator},
    }


def require(job: AgentTrainingJob, *, wait_seconds: float) -> None:
    """Wait until the Ray cluster has all devices of a job free at the same time.

    Raises RunFailedError with cause `resources` after `wait_seconds`. The requested placement groups also make an
    autoscaling cluster add machines.
    """
    import ray

    deadline = time.monotonic() + wait_seconds
    groups = [(each, _reserve(each)) for each in demands(job) for _ in range(each.machines)]
    try:
        missing = [each for each, group in groups if not group.wait(max(1, deadline - time.monotonic()))]
        if missing:
            raise RunFailedError(missing_message(missing, ray.nodes(), wait_seconds), "resources")
    finally:
        for _, group in groups:
            ray.util.remove_placement_group(group)
    _wait_until_free(sum(each.machines * each.gpus for each in demands(job)))


def wait_for_room(demand: Demand) -> None:
    """Wait until the Ray cluster has one of the machines, without a time limit; an autoscaling cluster adds it."""
    import ray

    group = _reserve(demand)
    try:
        ray.get(group.ready())
    finally:
        ray.util.remove_placement_group(group)
    _wait_until_free(demand.gpus)


def _wait_until_free(gpus: int) -> None:
    """Wait until Ray says that what was reserved is free, which it does with a delay: verl looks once."""
    import ray

    deadline = time.monotonic() + FREED_SECONDS
    while ray.available_resources().get("GPU", 0) < gpus and time.monotonic() < deadline:
        time.sleep(0.1)


def _reserve(demand: Demand) -> "PlacementGroup":
    import ray

    return ray.util.placement_group([demand.bundle] * demand.gpus, strategy="STRICT_PACK")


def only_kind(nodes: Iterable[RayNode]) -> str | None:
    """Return the accelerator of all machines with GPUs; None if there are several or it has no name."""
    kinds = [
        {name.removeprefix(PREFIX) for name in node["Resources"] if name.startswith(PREFIX)}
        for node in nodes
        if node["Alive"] and node["Resources"].get("GPU")
    ]
    return next(iter(kinds[0])) if kinds and all(len(kind) == 1 and kind == kinds[0] for kind in kinds) else None


def missing_message(missing: Iterable[Demand], nodes: Iterable[RayNode], waited: float) -> str:
    """Return the message for demands that were not met in time; `nodes` is the result of `ray.nodes()`."""
    wanted = "; ".join(f"{each.field} asks for {each}" for each in dict.fromkeys(missing))
    there = [describe(node["Resources"]) for node in nodes if node["Alive"] and node["Resources"].get("GPU")]
    return (
        f"{wanted}: not free within {waited:.0f} s. The Ray cluster has {', '.join(there) or 'no machine with a GPU'}. "
        "Ask for an accelerator and a number that it has, wait for other runs to end, or add machines."
    )


def describe(resources: Mapping[str, float]) -> str:
    """Describe a machine by its accelerator, GPUs and CPUs."""
    names = sorted(name.removeprefix(PREFIX) for name in resources if name.startswith(PREFIX))
    return f"{resources.get('GPU', 0):g} x {' or '.join(names) or 'GPU of no name'} ({resources.get('CPU', 0):g} CPUs)"
