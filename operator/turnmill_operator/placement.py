"""Placement of a job on its team's worker groups."""

import math
from collections.abc import Mapping
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
    if spec.training.mode == "separate_async":
        rollout = _group("spec.resources.rollout.accelerator", spec.resources.rollout.accelerator, spec, team)
        if isinstance(rollout, DesiredCondition):
            return rollout
        if (wanted := spec.gpus_per_engine) > rollout.gpus_per_node:
            return DesiredCondition(
                False,
                Reason.TOO_MANY_GPUS,
                f"{spec.gpus_per_engine_field}: {wanted} is more than the {rollout.gpus_per_node} GPUs of a node of "
                f"{rollout.name}, and an engine is on one node. Ask for at most {rollout.gpus_per_node}.",
            )
        replicas[rollout.name] = replicas.get(rollout.name, 0) + _rollout_nodes(spec, rollout)
        fields[rollout.name] = "spec.resources.rollout.replicas"
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


def _rollout_nodes(spec: JobSpec, group: WorkerGroup) -> int:
    """Return the nodes needed if every engine has all its GPUs on one node."""
    return math.ceil(spec.resources.rollout.replicas / (group.gpus_per_node // spec.gpus_per_engine))
