"""Placement of a job on its team's worker groups."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from turnmill.core.errors import SettingsError
from turnmill.jobs.job import JobSpec
from turnmill.jobs.team import TeamSettings, WorkerGroup
from turnmill_operator.status import DesiredCondition, Reason
from turnmill_operator.views import JobView, Observed


@dataclass(frozen=True, slots=True)
class Placement:
    """Number of pods in each worker group, by the group's name, and the device that they train on."""

    replicas: Mapping[str, int]
    device: Literal["cuda", "cpu"]


def place_job(view: JobView, observed: Observed) -> tuple[TeamSettings, Placement] | DesiredCondition:
    """Return the team's settings and the placement of a job, or the condition that says why it cannot be placed."""
    if view.job is None:
        return DesiredCondition(False, Reason.INVALID_SPEC, f"{view.spec_error} Correct it with kubectl apply.")
    if observed.kuberay is None:
        message = "The cluster does not serve ray.io/v1. Install KubeRay 1.5.1 or later."
        return DesiredCondition(False, Reason.NO_KUBERAY, message)
    if not observed.kuberay.ray_tokens:
        message = (
            "The installed KubeRay gives Ray clusters no token, so whoever reaches one could run code in it. Upgrade "
            "KubeRay, with its CustomResourceDefinitions, to 1.5.1 or later."
        )
        return DesiredCondition(False, Reason.KUBERAY_TOO_OLD, message)
    if observed.team is None:
        namespace = view.key.namespace
        message = f"Namespace {namespace} has no ConfigMap turnmill-team. Install the chart turnmill-team there."
        return DesiredCondition(False, Reason.NO_TEAM, message)
    if isinstance(observed.team, SettingsError):
        return DesiredCondition(False, Reason.BROKEN_TEAM, str(observed.team))
    placement = place(view.job.spec, observed.team)
    return placement if isinstance(placement, DesiredCondition) else (observed.team, placement)


def place(spec: JobSpec, team: TeamSettings) -> Placement | DesiredCondition:
    """Return the pods of a job, or the condition that says which limit of the team it exceeds."""
    train = _group("spec.resources.train.accelerator", spec.resources.train.accelerator, spec, team)
    if isinstance(train, DesiredCondition):
        return train
    if (wanted := spec.resources.train.gpus_per_node) > train.gpus_per_node:
        return DesiredCondition(
            False,
            Reason.TOO_MANY_GPUS,
            f"spec.resources.train.gpusPerNode: {wanted} is more than the {train.gpus_per_node} GPUs of a node of "
            f"{train.name}. Ask for at most {train.gpus_per_node}, and for more nodes.",
        )
    replicas = {train.name: spec.resources.train.nodes}
    fields = {train.name: "spec.resources.train.nodes"}
    for engines in _engines(spec):
        group = _group(f"{engines.place}.accelerator", engines.accelerator, spec, team)
        if isinstance(group, DesiredCondition):
            return group
        if engines.gpus > group.gpus_per_node:
            return DesiredCondition(
                False,
                Reason.TOO_MANY_GPUS,
                f"{engines.gpus_field}: {engines.gpus} is more than the {group.gpus_per_node} GPUs of a node of "
                f"{group.name}, and {engines.what} is on one node. Ask for at most {group.gpus_per_node}.",
            )
        replicas[group.name] = replicas.get(group.name, 0) + math.ceil(
            engines.replicas / (group.gpus_per_node // engines.gpus)
        )
        fields[group.name] = f"{engines.place}.replicas"
    for group in team.worker_groups:
        if (nodes := replicas.get(group.name, 0)) > group.max_replicas:
            return DesiredCondition(
                False,
                Reason.TOO_MANY_NODES,
                f"{fields[group.name]}: the job needs {nodes} nodes of {group.name}, and the team may have "
                f"{group.max_replicas}. Ask for fewer, or raise maxReplicas of {group.name} in the team's chart.",
            )
    if spec.cluster == "shared" and team.shared_cluster is None:
        return DesiredCondition(
            False,
            Reason.NO_SHARED_CLUSTER,
            "spec.cluster: the team has no shared Ray cluster. Set it to own, or switch one on in the team's chart.",
        )
    device = train.device if spec.resources.device == "auto" else spec.resources.device
    return Placement(replicas, device)


def _group(path: str, accelerator: str | None, spec: JobSpec, team: TeamSettings) -> WorkerGroup | DesiredCondition:
    group = team.group_for(accelerator)
    if group is None:
        return DesiredCondition(
            False,
            Reason.NO_SUCH_ACCELERATOR,
            f"{path}: {accelerator!r} is none of the team's accelerators ({team.accelerators}). Use one of them, or "
            "add a worker group to the team's chart.",
        )
    if spec.resources.device == "cuda" and group.device == "cpu":
        return DesiredCondition(
            False,
            Reason.NO_SUCH_DEVICE,
            f"spec.resources.device: 'cuda', but the pods of {group.name} have no GPU. Set it to cpu or auto, or name "
            "another accelerator.",
        )
    return group


@dataclass(frozen=True, slots=True)
class _Engines:
    """Engines that have GPUs of their own, each all of its GPUs on one node."""

    place: str
    """Section of the job that asks for them."""

    replicas: int
    gpus: int
    gpus_field: str
    accelerator: str | None
    what: str


def _engines(spec: JobSpec) -> Iterator[_Engines]:
    if spec.training.mode == "separate_async":
        rollout = spec.resources.rollout
        yield _Engines(
            "spec.resources.rollout",
            rollout.replicas,
            spec.gpus_per_engine,
            spec.gpus_per_engine_field,
            rollout.accelerator,
            "an engine",
        )
    if (reward := spec.reward_model) is not None:
        gpus_field = "spec.rewardModel.tensorParallel"
        yield _Engines(
            "spec.rewardModel", reward.replicas, reward.tensor_parallel, gpus_field, reward.accelerator, "a server"
        )
