"""Objects of the API server as the operator reads them, and a KubeRay that runs no Ray."""

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import yaml

Raw = dict[str, Any]

NAMESPACE, UID = "team-a", "0123456789abcdef"
START = datetime(2026, 1, 1, tzinfo=UTC)
JOB_LABEL, ATTEMPT_LABEL = "turnmill.dev/job", "turnmill.dev/attempt"


def at(seconds: float) -> datetime:
    """Return the time this number of seconds after START."""
    return START + timedelta(seconds=seconds)


def stamp(time: datetime) -> str:
    """Return a time in the API server's format."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def raw_job(name: str = "job", *, status: Raw | None = None, **changes: Any) -> Raw:
    """Return a job that is admitted and has no retries, with changes such as `training__steps=3` below `spec`."""
    spec: Raw = {
        "model": {"warmStart": {}},
        "agent": {"prompt": "compact"},
        "environment": {"name": "babyai"},
        "training": {"steps": 20, "turnsPerStep": 256},
        "retries": 0,
    }
    for path, value in changes.items():
        *sections, field = path.split("__")
        node = spec
        for section in sections:
            node = node.setdefault(section, {})
        node[field] = value
    return {
        "apiVersion": "turnmill.dev/v1alpha1",
        "kind": "AgentTrainingJob",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "uid": UID,
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": stamp(START),
        },
        "spec": spec,
        **({"status": status} if status else {}),
    }


def pod_template(**container: Any) -> Raw:
    """Return a pod template as in a team's chart."""
    ray = {"name": "ray", "image": "trainer", "volumeMounts": [{"name": "runs", "mountPath": "/runs"}], **container}
    return {"spec": {"containers": [ray], "volumes": [{"name": "runs", "emptyDir": {}}]}}


def raw_team(**changes: Any) -> Raw:
    """Return a team's ConfigMap with two groups of two pods each and logical GPUs."""
    group = {"device": "cpu", "maxReplicas": 2, "gpusPerNode": 1, "rayStartParams": {"num-gpus": "1"}}
    team = {
        "rayVersion": "2.60.0",
        "head": {"template": pod_template()},
        "workerGroups": [
            {"name": "h100", "accelerator": "H100", "template": pod_template(), **group},
            {"name": "a40", "accelerator": "A40", "template": pod_template(), **group},
        ],
        **changes,
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "turnmill-team", "namespace": NAMESPACE},
        "data": {"team.yaml": yaml.safe_dump(team)},
    }


def raw_ray_job(
    attempt: int = 1,
    *,
    job: str = "job",
    uid: str = UID,
    suspend: bool = False,
    started: bool = False,
    held: bool = False,
    queue: str | None = None,
    shared: bool = False,
    **status: Any,
) -> Raw:
    """Return an attempt's RayJob, with a status of KubeRay's such as `jobStatus="RUNNING"`.

    `suspend`: its job has suspended it; `started`: it ran before; `held`: Kueue holds it; `queue`: its queue in Kueue;
    `shared`: it runs on a shared cluster.
    """
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {
            "name": f"{job}-{attempt}",
            "namespace": NAMESPACE,
            "uid": "ray-job-uid",
            "resourceVersion": "1",
            "creationTimestamp": stamp(START),
            "labels": {
                JOB_LABEL: job,
                ATTEMPT_LABEL: str(attempt),
                **({"kueue.x-k8s.io/queue-name": queue} if queue else {}),
            },
            "annotations": {
                "turnmill.dev/started": "true" if started or not suspend else "false",
                "turnmill.dev/suspended": "true" if suspend else "false",
                "turnmill.dev/metrics-port": "9464",
            },
            "ownerReferences": [{"uid": uid, "controller": True}],
        },
        "spec": {
            "suspend": suspend or held,
            **({"clusterSelector": {"ray.io/cluster": "team"}} if shared else {}),
        },
        **({"status": status} if status else {}),
    }


def raw_pod(
    name: str, *, attempt: int, job: str = "job", disrupted_at: datetime | None = None, phase: str = "Running"
) -> Raw:
    """Return a pod of an attempt on the node `node-1`, which may have been evicted at a time."""
    conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": stamp(START)}]
    if disrupted_at is not None:
        conditions.append(
            {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting",
                "lastTransitionTime": stamp(disrupted_at),
            }
        )
    labels = {JOB_LABEL: job, ATTEMPT_LABEL: str(attempt)}
    return {
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {"nodeName": "node-1"},
        "status": {"phase": phase, "conditions": conditions},
    }


class KubeRayDouble:
    """A job and its RayJobs; `step` does KubeRay's work, and runs end with the given outcomes."""

    def __init__(self, job: Raw, outcomes: list[str]) -> None:
        self.now = START
        self.job: Raw | None = job
        self.ray_jobs: dict[str, Raw] = {}
        self.started: list[str] = []
        """Names of started RayJobs in order, with repetitions."""
        self.deleted: list[str] = []
        self._outcomes = outcomes
        self._version = 1

    def apply(self, manifest: Raw) -> Raw:
        """Create a RayJob, or change one."""
        name = manifest["metadata"]["name"]
        known = self.ray_jobs.get(name, {})
        found = copy.deepcopy(manifest)
        found["metadata"]["creationTimestamp"] = known.get("metadata", {}).get("creationTimestamp", stamp(self.now))
        if "status" in known:
            found["status"] = known["status"]
        if known and known["spec"] == found["spec"]:
            return known
        self.ray_jobs[name] = self._with_new_version(found)
        return self.ray_jobs[name]

    def write_job(self, **fields: Any) -> Raw | None:
        """Replace the job's status, or its finalizers."""
        if self.job is not None:
            if "finalizers" in fields:
                self.job = self._with_new_version({**self.job, "metadata": {**self.job["metadata"], **fields}})
            else:
                self.job = self._with_new_version({**self.job, **fields})
        return self.job

    def change(self, **spec: Any) -> None:
        """Change the spec of the job, as a user does."""
        if self.job is not None:
            metadata = {**self.job["metadata"], "generation": self.job["metadata"]["generation"] + 1}
            self.job = self._with_new_version({**self.job, "metadata": metadata, "spec": {**self.job["spec"], **spec}})

    def delete(self, name: str) -> None:
        """Delete a RayJob."""
        if self.ray_jobs.pop(name, None) is not None:
            self.deleted.append(name)

    def step(self) -> None:
        """Advance the status of every RayJob by one phase."""
        for name, ray_job in list(self.ray_jobs.items()):
            before = ray_job.get("status", {})
            after = self._next(name, ray_job, before)
            if after != before:
                self.ray_jobs[name] = self._with_new_version({**ray_job, "status": after})

    def _next(self, name: str, ray_job: Raw, status: Raw) -> Raw:
        deployment = status.get("jobDeploymentStatus", "")
        suspend = ray_job["spec"].get("suspend", False)
        match deployment:
            case "Complete" | "Failed":
                return status
            case "" | "Suspended" if not suspend:
                self.started.append(name)
                return {
                    "jobDeploymentStatus": "Initializing",
                    "startTime": stamp(self.now),
                    "rayClusterName": f"{name}-c",
                }
            case "Initializing" | "Running" | "" if suspend:
                return {"jobDeploymentStatus": "Suspending"}
            case "Suspending":
                return {"jobDeploymentStatus": "Suspended"}
            case "Initializing":
                return {**status, "jobDeploymentStatus": "Running", "jobStatus": "RUNNING", "dashboardURL": "head:8265"}
            case "Running":
                return {**status, **self._end(name)}
            case _:
                return status

    def _end(self, name: str) -> Raw:
        outcome = self._outcomes[min(self.started.index(name), len(self._outcomes) - 1)]
        if outcome == "SUCCEEDED":
            return {"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}
        message = f"Job entrypoint command failed with exit code {outcome}, last available logs: boom"
        return {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "reason": "AppFailed", "message": message}

    def _with_new_version(self, raw: Raw) -> Raw:
        self._version += 1
        return {**raw, "metadata": {**raw["metadata"], "resourceVersion": str(self._version)}}
