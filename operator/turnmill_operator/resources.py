"""Manifests of the objects that the operator creates: pure functions of a job and its team."""

import copy
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from turnmill.jobs.job import API_VERSION, KIND
from turnmill.jobs.team import CleanUp, HeadGroup, TeamSettings, WorkerGroup, run_dir
from turnmill.jobs.versions import changed_fields
from turnmill_operator.placement import Placement
from turnmill_operator.run_pods import avoid
from turnmill_operator.views import (
    ATTEMPT_LABEL,
    HASH_ANNOTATION,
    JOB_LABEL,
    PRIORITY_LABEL,
    QUEUE_LABEL,
    STARTED_ANNOTATION,
    SUSPENDED_ANNOTATION,
    JobView,
    RawObject,
)

Manifest = dict[str, Any]

RAY_API, RAY_JOB, EVENT = "ray.io/v1", "RayJob", "Event"
ENTRYPOINT = "turnmill run --ray auto"
METRICS_PORT = 9464
# KubeRay adds Ray's ports only to a head that declares none.
HEAD_PORTS = {"gcs-server": 6379, "dashboard": 8265, "client": 10001, "turnmill": METRICS_PORT}
CLEAN_UP_SECONDS = 60


def ray_job_name(job: str, attempt: int) -> str:
    """Return the name of an attempt's RayJob: at most 47 characters, as KubeRay requires."""
    return f"{job}-{attempt}"


def build_ray_job(
    view: JobView,
    team: TeamSettings,
    placement: Placement,
    *,
    attempt: int,
    suspend: bool,
    started: bool,
    name: str | None = None,
    held: bool = False,
) -> Manifest:
    """Build the RayJob of one attempt, on a Ray cluster of its own or on the team's shared one.

    `name` is that of the RayJob of an earlier attempt that is used again; Kueue decides when one that is `held` starts.
    """
    assert view.job is not None
    spec = view.job.spec
    shared = spec.cluster == "shared"
    body: Manifest = {
        "entrypoint": ENTRYPOINT,
        "submissionMode": "HTTPMode",
        # The operator counts attempts: KubeRay's retries would all be the same attempt.
        "backoffLimit": 0,
        "runtimeEnvYAML": _runtime_env(view, placement, attempt),
    }
    if shared:
        body["clusterSelector"] = {"ray.io/cluster": team.shared_cluster}
    else:
        body |= {"shutdownAfterJobFinishes": True, "ttlSecondsAfterFinished": 0}
        body["rayClusterSpec"] = _ray_cluster_spec(view, team, placement, attempt)
        # They change only with an attempt that gets another RayJob: one that Kueue holds keeps its pod sets.
        for group in _groups(body["rayClusterSpec"]):
            avoid(group["template"], view.status.failed_nodes)
    labels = team.run_labels | _labels(view, attempt) | ({QUEUE_LABEL: spec.queue} if spec.queue else {})
    labels |= {PRIORITY_LABEL: spec.queue_priority_class} if spec.queue_priority_class else {}
    annotations = {
        HASH_ANNOTATION: hashlib.sha256(json.dumps([labels, body], sort_keys=True).encode()).hexdigest()[:16],
        STARTED_ANNOTATION: "true" if started else "false",
        SUSPENDED_ANNOTATION: "true" if suspend else "false",
    }
    if not (shared or held or spec.queue):
        # KubeRay cannot suspend a run on a shared cluster; under a queue the field belongs to Kueue.
        body["suspend"] = suspend
    return {
        "apiVersion": RAY_API,
        "kind": RAY_JOB,
        "metadata": {
            "name": name or ray_job_name(view.key.name, attempt),
            "namespace": view.key.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [_owner_reference(view)],
        },
        "spec": body,
    }


def build_clean_up(view: JobView, clean_up: CleanUp) -> Manifest:
    """Build the batch Job that deletes a run's data from the trajectory store; it has a deadline of its own."""
    template = _pod_template(clean_up.template, _labels(view) | {"app.kubernetes.io/component": "clean-up"})
    template["spec"]["restartPolicy"] = "Never"
    template["spec"]["containers"][0]["args"] = ["clean-up", "--run-dir", _run_dir(view)]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": clean_up_name(view.key.name),
            "namespace": view.key.namespace,
            "labels": _labels(view),
            "ownerReferences": [_owner_reference(view)],
        },
        "spec": {"backoffLimit": 2, "activeDeadlineSeconds": CLEAN_UP_SECONDS, "template": template},
    }


def clean_up_name(job: str) -> str:
    """Return the name of a job's clean-up Job."""
    return f"{job}-clean-up"


def _run_dir(view: JobView) -> str:
    return run_dir(view.key.namespace, view.key.name, view.uid)


def _runtime_env(view: JobView, placement: Placement, attempt: int) -> str:
    assert view.job is not None
    variables = {
        # Without the defaults, which the API server has filled in: the trainer may be older than the CRD.
        "TURNMILL_JOB": json.dumps(changed_fields(view.job), separators=(",", ":")),
        "TURNMILL_ATTEMPT": str(attempt),
        "TURNMILL_RUN_DIR": _run_dir(view),
        "TURNMILL_METRICS_PORT": str(METRICS_PORT),
        # The head, where the run starts, has no GPU by which to tell.
        "TURNMILL_DEVICE": placement.device,
    }
    # JSON is valid YAML and much faster to write.
    return json.dumps({"env_vars": variables}, sort_keys=True)


def _ray_cluster_spec(view: JobView, team: TeamSettings, placement: Placement, attempt: int) -> Manifest:
    groups = [group for group in team.worker_groups if placement.replicas.get(group.name)]
    labels = _labels(view, attempt)
    return {
        "rayVersion": team.ray_version,
        # KubeRay makes a token for each cluster: who can reach its head cannot submit work without it.
        "authOptions": {"mode": "token"},
        "headGroupSpec": _head_group(team.head, labels),
        "workerGroupSpecs": [_worker_group(group, placement.replicas[group.name], labels) for group in groups],
    }


def _groups(cluster: Manifest) -> list[Manifest]:
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def _head_group(head: HeadGroup, labels: Mapping[str, str]) -> Manifest:
    template = _pod_template(head.template, {**labels, "app.kubernetes.io/component": "head"})
    container = template["spec"]["containers"][0]
    ports = list(container.get("ports", ()))
    taken = {port.get("name") for port in ports} | {port["containerPort"] for port in ports}
    missing = [(name, port) for name, port in HEAD_PORTS.items() if not {name, port} & taken]
    container["ports"] = [*ports, *({"name": name, "containerPort": port} for name, port in missing)]
    return {"rayStartParams": dict(head.ray_start_params), "template": template}


def _worker_group(group: WorkerGroup, replicas: int, labels: Mapping[str, str]) -> Manifest:
    return {
        "groupName": group.name,
        # Without autoscaling KubeRay requires all three.
        **dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), replicas),
        "rayStartParams": dict(group.ray_start_params),
        "template": _pod_template(group.template, {**labels, "app.kubernetes.io/component": group.name}),
    }


def _pod_template(template: RawObject, labels: Mapping[str, str]) -> Manifest:
    """Return a pod template with the job's labels, of which the template's take precedence, and without a token."""
    pod = copy.deepcopy(dict(template))
    metadata = pod.setdefault("metadata", {})
    metadata["labels"] = {**labels, **metadata.get("labels", {})}
    pod["spec"].setdefault("automountServiceAccountToken", False)
    return pod


def _labels(view: JobView, attempt: int | None = None) -> dict[str, str]:
    labels = {
        "app.kubernetes.io/name": "turnmill-run",
        "app.kubernetes.io/instance": view.key.name,
        "app.kubernetes.io/part-of": "turnmill",
        "app.kubernetes.io/managed-by": "turnmill-operator",
        JOB_LABEL: view.key.name,
    }
    return labels | ({ATTEMPT_LABEL: str(attempt)} if attempt else {})


def _owner_reference(view: JobView) -> Manifest:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": view.key.name,
        "uid": view.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
