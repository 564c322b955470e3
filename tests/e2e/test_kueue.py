"""Jobs in queues of the real Kueue: order, eviction, preemption, and what the status says.

No Ray runs: a quota prevents KubeRay from creating clusters, and the tests write the status of runs that have started.
"""

import json
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.jobs import job
from support.kubernetes import Namespace, temporary_namespace, wait_for
from support.operator_process import operator_process
from support.ray_job_status import NO_CLUSTERS, RayJobStatuses, ray_job_statuses
from support.ray_jobs import pod_template, raw_team
from support.team_jobs import install_definition

KUEUE = "kueue.x-k8s.io/v1beta2"
REQUESTS = {"requests": {"cpu": "200m", "memory": "64Mi"}}
"""A head and a worker take 400 of the queue's 500 millicores, so that one job runs at a time."""


RACK = "turnmill.test/rack"
FAKE = {"key": "kwok", "value": "fake", "effect": "NoSchedule"}


def cluster_objects(name: str, flavor_spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a ClusterQueue in which higher priorities preempt lower ones, and such a priority."""
    quotas = [{"name": "cpu", "nominalQuota": "500m"}, {"name": "memory", "nominalQuota": "8Gi"}]
    flavor = {"name": name, "resources": quotas}
    queue = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": ["cpu", "memory"], "flavors": [flavor]}],
    }
    metadata = {"name": name}
    return [
        {"apiVersion": KUEUE, "kind": "ResourceFlavor", "metadata": metadata, "spec": flavor_spec},
        {"apiVersion": KUEUE, "kind": "ClusterQueue", "metadata": metadata, "spec": queue},
        {"apiVersion": KUEUE, "kind": "WorkloadPriorityClass", "metadata": metadata, "value": 1000},
    ]


class QueuedJobs:
    """Jobs of a namespace with the queue `team`."""

    def __init__(self, namespace: Namespace, statuses: RayJobStatuses) -> None:
        self._namespace, self._statuses = namespace, statuses

    def submit(self, name: str, queue: str = "team", **changes: Any) -> None:
        self._namespace.apply({**job(queue=queue, retries=0, **changes), "metadata": {"name": name}})

    def status(self, name: str) -> dict[str, Any]:
        return (self._namespace.get("atj", name) or {}).get("status", {})

    def message(self, name: str) -> str:
        found = [c["message"] for c in self.status(name).get("conditions", ()) if c["type"] == "ClusterReady"]
        return found[0] if found else ""

    def wait_for_message(self, name: str, text: str) -> None:
        wait_for(f"{text!r} in the status of {name}", lambda: text in self.message(name), seconds=90)

    def ray_job(self, name: str) -> dict[str, Any]:
        """Return the job's only RayJob."""
        (found,) = self._namespace.list("rayjobs", f"turnmill.dev/job={name}")
        return found

    def is_admitted(self, name: str) -> bool:
        found = self._namespace.list("rayjobs", f"turnmill.dev/job={name}")
        return bool(found) and not found[0]["spec"].get("suspend")

    def workload(self, name: str) -> dict[str, Any]:
        uid = self.ray_job(name)["metadata"]["uid"]
        (found,) = self._namespace.list("workloads", f"kueue.x-k8s.io/job-uid={uid}")
        return found

    def true_conditions(self, name: str) -> set[str]:
        """Return the conditions of a job's Workload that are true."""
        return {found["type"] for found in self.workload(name)["status"]["conditions"] if found["status"] == "True"}

    def set_active(self, name: str, active: bool) -> None:
        """Stop a job's Workload, or let it wait for quota again."""
        workload, patch = self.workload(name)["metadata"]["name"], json.dumps({"spec": {"active": active}})
        self._namespace.kubectl("patch", "workload", workload, "--type=merge", f"--patch={patch}")

    async def run(self, name: str) -> None:
        """Wait for the job's admission, and let its run start."""
        wait_for(f"admission of {name}", lambda: self.is_admitted(name) or None, seconds=90)
        await self._statuses.start(self.ray_job(name))
        wait_for(f"start of {name}", lambda: self.status(name).get("state") == "Running" or None, seconds=60)

    async def end(self, name: str) -> None:
        await self._statuses.end(self.ray_job(name), succeeded=True)
        wait_for(f"end of {name}", lambda: self.status(name).get("state") == "Complete" or None, seconds=60)


@contextmanager
def queued_namespace(prefix: str, template: dict[str, Any], **flavor: Any) -> Iterator[Namespace]:
    """A namespace with a queue for pods of a template, in which KubeRay creates no clusters."""
    with temporary_namespace(prefix) as fresh:
        if fresh.try_kubectl("get", "crd", "clusterqueues.kueue.x-k8s.io").returncode:
            pytest.skip("no Kueue in the cluster")
        install_definition(fresh)
        group = {
            "name": "h100",
            "accelerator": "H100",
            "device": "cpu",
            "gpusPerNode": 1,
            "maxReplicas": 2,
            "rayStartParams": {"num-gpus": "1"},
            "template": template,
        }
        team = raw_team(head={"template": template}, workerGroups=[group])
        fresh.apply(NO_CLUSTERS, {**team, "metadata": {"name": team["metadata"]["name"]}})
        queue = {"metadata": {"name": "team"}, "spec": {"clusterQueue": fresh.name}}
        objects = cluster_objects(fresh.name, flavor)
        fresh.apply(*objects, {"apiVersion": KUEUE, "kind": "LocalQueue", **queue})
        try:
            yield fresh
        finally:
            fresh.kubectl("delete", "atj,rayjobs,localqueues", "--all", "--timeout=60s")
            for kind in ("clusterqueue", "resourceflavor", "workloadpriorityclass"):
                fresh.kubectl("delete", kind, fresh.name, "--timeout=60s")


@contextmanager
def racks(names: list[str], prefix: str) -> Iterator[str]:
    """Two racks of two fake nodes, of which each has room for one pod; yield the name of their topology."""
    name = f"{prefix}-{uuid.uuid4().hex[:8]}"
    cluster = Namespace("default")
    room = {"cpu": "200m", "memory": "1Gi", "pods": "10"}
    nodes = [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": f"{name}-{rack}-{number}",
                "labels": {RACK: rack, "kubernetes.io/hostname": f"{name}-{rack}-{number}", "turnmill.test/pool": name},
                "annotations": {"kwok.x-k8s.io/node": "fake"},
            },
            "spec": {"taints": [FAKE]},
            "status": {"allocatable": room, "capacity": room},
        }
        for rack in names
        for number in range(2)
    ]
    levels = [{"nodeLabel": RACK}, {"nodeLabel": "kubernetes.io/hostname"}]
    topology = {"apiVersion": KUEUE, "kind": "Topology", "metadata": {"name": name}, "spec": {"levels": levels}}
    created = json.dumps({"apiVersion": "v1", "kind": "List", "items": [*nodes, topology]})
    cluster.kubectl("create", "--filename=-", stdin=created)
    chosen = f"--selector=turnmill.test/pool={name}"
    try:
        if cluster.try_kubectl("wait", "--for=condition=Ready", "node", chosen, "--timeout=30s").returncode:
            pytest.skip("no kwok that makes fake nodes ready")
        yield name
    finally:
        cluster.kubectl("delete", "node", chosen)
        cluster.kubectl("delete", "topologies.kueue.x-k8s.io", name, "--timeout=60s")


@pytest.fixture
def namespace(prefix: str) -> Iterator[Namespace]:
    with queued_namespace(prefix, pod_template(resources=REQUESTS)) as fresh:
        yield fresh


@pytest.fixture
async def jobs(namespace: Namespace, tmp_path: Path) -> AsyncIterator[QueuedJobs]:
    with operator_process(namespace.name, tmp_path / "operator.log"):
        async with ray_job_statuses(namespace.name) as statuses:
            yield QueuedJobs(namespace, statuses)


async def test_an_evicted_run_keeps_its_workload_and_returns_before_younger_jobs(jobs: QueuedJobs):
    jobs.submit("oldest")
    await jobs.run("oldest")
    before = jobs.workload("oldest")["metadata"]["uid"]
    jobs.submit("second")
    jobs.wait_for_message("second", "insufficient unused quota for cpu in flavor")

    jobs.set_active("oldest", False)
    await jobs.run("second")
    jobs.wait_for_message("oldest", "The workload is deactivated")
    assert jobs.workload("oldest")["spec"]["active"] is False
    jobs.submit("third")
    jobs.wait_for_message("third", "insufficient unused quota")
    jobs.set_active("oldest", True)
    wait_for("return to the queue", lambda: "Requeued" in jobs.true_conditions("oldest"), seconds=60)
    await jobs.end("second")
    await jobs.run("oldest")

    assert jobs.workload("oldest")["metadata"]["uid"] == before
    assert '"TURNMILL_ATTEMPT": "2"' in jobs.ray_job("oldest")["spec"]["runtimeEnvYAML"]
    status = jobs.status("oldest")
    assert (status["attempt"], status["failedAttempts"]) == (2, 0)
    assert not jobs.is_admitted("third")
    await jobs.end("oldest")
    await jobs.run("third")


async def test_a_job_of_a_higher_priority_preempts_a_running_one_which_then_returns(
    jobs: QueuedJobs, namespace: Namespace
):
    jobs.submit("usual")
    await jobs.run("usual")
    before = jobs.workload("usual")["metadata"]["uid"]

    jobs.submit("urgent", queuePriorityClass=namespace.name)
    await jobs.run("urgent")
    jobs.wait_for_message("usual", "Kueue has not admitted the run")
    await jobs.end("urgent")
    await jobs.run("usual")

    assert jobs.workload("usual")["metadata"]["uid"] == before
    assert (jobs.status("usual")["attempt"], jobs.status("usual")["failedAttempts"]) == (2, 0)


def test_a_queue_that_does_not_exist_is_named_in_the_status(jobs: QueuedJobs):
    jobs.submit("lost", queue="nowhere")

    jobs.wait_for_message("lost", "LocalQueue nowhere doesn't exist. See `kubectl describe workload -l")


def assignments(namespace: Namespace) -> dict[str, list[str]]:
    """Return the nodes that Kueue has chosen for each set of pods of the namespace's only Workload."""
    for workload in namespace.list("workloads"):
        sets = workload.get("status", {}).get("admission", {}).get("podSetAssignments", ())
        return {each["name"]: nodes_of(each["topologyAssignment"]) for each in sets if "topologyAssignment" in each}
    return {}


def nodes_of(assignment: dict[str, Any]) -> list[str]:
    """Return the nodes of an assignment, whose names Kueue shortens by what they have in common."""
    found = []
    for part in assignment["slices"]:
        named = part["valuesPerLevel"][-1]
        if "universal" in named:
            found.append(named["universal"])
        else:
            each = named["individual"]
            found += [each.get("prefix", "") + root + each.get("suffix", "") for root in each["roots"]]
    return found


def test_the_workers_of_a_run_get_nodes_of_one_rack(prefix: str, tmp_path: Path):
    # A head and two workers take 450 of the queue's 500 millicores.
    template = pod_template(resources={"requests": {"cpu": "150m", "memory": "64Mi"}})
    template["metadata"] = {"annotations": {"kueue.x-k8s.io/podset-required-topology": RACK}}
    with racks(["a", "b"], prefix) as topology:
        flavor = {
            "nodeLabels": {"turnmill.test/pool": topology},
            "topologyName": topology,
            "tolerations": [{"key": "kwok", "operator": "Exists"}],
        }
        with queued_namespace(prefix, template, **flavor) as fresh, operator_process(fresh.name, tmp_path / "log"):
            two_workers = {"nodes": 2, "gpusPerNode": 1}
            fresh.apply({**job(queue="team", resources__train=two_workers), "metadata": {"name": "wide"}})

            assigned = wait_for("an admission", lambda: assignments(fresh), seconds=60)

    workers = assigned["h100"]
    assert len(workers) == 2
    assert len({node.rsplit("-", 1)[0] for node in workers}) == 1
