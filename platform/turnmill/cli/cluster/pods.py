"""Pods of a job, and short-lived pods that read its run folder."""

import copy
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from turnmill.cli.cluster.api import CONFIG_MAPS, PODS, Cluster, ClusterError
from turnmill.cli.cluster.resource import Resource
from turnmill.core.errors import SettingsError
from turnmill.jobs.crd import GROUP
from turnmill.jobs.job import API_VERSION, KIND
from turnmill.jobs.team import CONFIG_MAP, RUNS_FOLDER, TeamSettings, parse_team

JOB_LABEL = f"{GROUP}/job"
START_SECONDS, POLL_SECONDS = 300.0, 1.0
# A pod whose command line is gone ends by itself.
READER_SECONDS = 8 * 3600
KEPT_OF_POD = ("imagePullSecrets", "nodeSelector", "securityContext", "tolerations", "affinity", "runtimeClassName")
KEPT_OF_CONTAINER = ("image", "imagePullPolicy", "securityContext")


@dataclass(frozen=True, slots=True)
class Container:
    """A running container in which commands are started."""

    pod: str
    name: str


def pods_of(cluster: Cluster, job: Resource) -> list[Resource]:
    """Return the pods of a job's runs, and those of the shared cluster that it uses."""
    found = {
        pod["metadata"]["name"]: pod for pod in cluster.list(PODS, labels=f"{JOB_LABEL}={job['metadata']['name']}")
    }
    if ray_cluster := (job.get("status") or {}).get("cluster"):
        shared = cluster.list(PODS, labels=f"ray.io/cluster={ray_cluster}")
        found |= {pod["metadata"]["name"]: pod for pod in shared}
    return list(found.values())


def head_of(cluster: Cluster, job: Resource) -> Container | None:
    """Return the running Ray head of a job's last attempt; None if there is none."""
    ray_cluster = (job.get("status") or {}).get("cluster")
    if not ray_cluster:
        return None
    for pod in cluster.list(PODS, labels=f"ray.io/cluster={ray_cluster},ray.io/node-type=head"):
        if is_ready(pod):
            return Container(pod["metadata"]["name"], pod["spec"]["containers"][0]["name"])
    return None


def is_ready(pod: Resource) -> bool:
    """Return whether a pod is ready and stays."""
    conditions = (pod.get("status") or {}).get("conditions") or ()
    ready = any(found["type"] == "Ready" and found["status"] == "True" for found in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


@contextmanager
def reader(cluster: Cluster, job: Resource, command: Sequence[str]) -> Iterator[Container]:
    """Start a pod with the job's run folder and a command; yield it when it runs, and delete it at the end."""
    manifest = build_reader(job, _team(cluster), command)
    name = manifest["metadata"]["name"]
    cluster.create(PODS, manifest)
    try:
        _wait_until_running(cluster, name)
        yield Container(name, manifest["spec"]["containers"][0]["name"])
    finally:
        cluster.delete(PODS, name, grace_seconds=0)


def build_reader(job: Resource, team: TeamSettings, command: Sequence[str]) -> Resource:
    """Build a pod that reads the job's run folder: the image of the team's heads, without Ray, GPUs and passwords."""
    template = copy.deepcopy(team.head.template)
    head = template["spec"]["containers"][0]
    runs = next(mount for mount in head["volumeMounts"] if mount["mountPath"] == RUNS_FOLDER)
    volume = next(found for found in template["spec"]["volumes"] if found["name"] == runs["name"])
    metadata = job["metadata"]
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": metadata["name"], "uid": metadata["uid"]}
    container = {
        "name": "reader",
        "command": list(command),
        "env": [{"name": "HOME", "value": "/tmp"}],
        "resources": {
            "requests": {"cpu": "100m", "memory": "256Mi", "ephemeral-storage": "16Mi"},
            "limits": {"cpu": "2", "memory": "4Gi", "ephemeral-storage": "1Gi"},
        },
        "volumeMounts": [runs | {"readOnly": True}, {"name": "reader-temporary", "mountPath": "/tmp"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{metadata['name']}-reader-{secrets.token_hex(3)}",
            "labels": {
                "app.kubernetes.io/name": "turnmill-run",
                "app.kubernetes.io/instance": metadata["name"],
                "app.kubernetes.io/component": "reader",
                "app.kubernetes.io/managed-by": "turnmill",
            },
            "ownerReferences": [owner],
        },
        "spec": {
            **_kept(template["spec"], KEPT_OF_POD),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": READER_SECONDS,
            "terminationGracePeriodSeconds": 0,
            "containers": [container | _kept(head, KEPT_OF_CONTAINER)],
            "volumes": [volume, {"name": "reader-temporary", "emptyDir": {"sizeLimit": "512Mi"}}],
        },
    }


def _kept(source: Resource, names: Sequence[str]) -> Resource:
    return {name: source[name] for name in names if name in source}


def _team(cluster: Cluster) -> TeamSettings:
    try:
        return parse_team(cluster.get(CONFIG_MAPS, CONFIG_MAP).get("data") or {})
    except ClusterError as error:
        if error.code != 404:
            raise
        raise SettingsError(
            f"Namespace {cluster.namespace} has no ConfigMap {CONFIG_MAP}, which names the volume of run folders. "
            "Name the team's namespace with --namespace."
        ) from error


def _wait_until_running(cluster: Cluster, name: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        pod = cluster.get(PODS, name)
        phase = (pod.get("status") or {}).get("phase")
        if phase == "Running":
            return
        if phase in ("Succeeded", "Failed") or time.monotonic() > deadline:
            raise ClusterError(f"Pod {name}, which reads the run folder, does not run: {_why(pod)}")
        time.sleep(POLL_SECONDS)


def _why(pod: Resource) -> str:
    status = pod.get("status") or {}
    for found in status.get("containerStatuses") or ():
        state = found.get("state") or {}
        for kind in ("waiting", "terminated"):
            if kind in state:
                return f"{state[kind].get('reason')}: {state[kind].get('message', '')}".rstrip(": ")
    unscheduled = (found for found in status.get("conditions") or () if found["status"] == "False")
    return next((str(found.get("message", "")) for found in unscheduled), status.get("phase") or "no reason is known")
