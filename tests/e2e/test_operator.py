"""The operator on a real API server with the real KubeRay, through restarts, outages and many jobs.

No Ray runs: a quota prevents KubeRay from creating clusters, and the test writes the status that KubeRay would write.
"""

import asyncio
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from support.jobs import job
from support.kubernetes import Namespace, temporary_namespace, wait_for
from support.operator_process import OperatorProcess, operator_process
from support.ray_job_status import NO_CLUSTERS, RayJobStatuses, ray_job_statuses
from support.ray_jobs import pod_template, raw_team
from support.team_jobs import install_definition
from support.toxiproxy import Toxiproxy, toxiproxy_server

# No pod of these templates is ever created.
TEAM = raw_team()
CLEAN_UP_TEAM = raw_team(cleanUp={"template": pod_template(image="turnmill/none:0")})


def config_map(team: Mapping[str, Any]) -> dict[str, Any]:
    return {**team, "metadata": {"name": team["metadata"]["name"]}}


def named_job(name: str, **changes: Any) -> dict[str, Any]:
    return {**job(**changes), "metadata": {"name": name}}


@pytest.fixture
def namespace(prefix: str) -> Iterator[Namespace]:
    """A namespace in which KubeRay creates no clusters."""
    with temporary_namespace(prefix) as fresh:
        install_definition(fresh)
        fresh.apply(NO_CLUSTERS)
        yield fresh


@pytest.fixture
def operator(namespace: Namespace, tmp_path: Path) -> Iterator[OperatorProcess]:
    """One replica of the operator."""
    with operator_process(namespace.name, tmp_path / "operator.log") as process:
        yield process


def conditions(resource: Mapping[str, Any] | None) -> dict[str, tuple[str, str]]:
    found = ((resource or {}).get("status") or {}).get("conditions", ())
    return {condition["type"]: (condition["status"], condition["reason"]) for condition in found}


def state(resource: Mapping[str, Any] | None) -> str:
    return str(((resource or {}).get("status") or {}).get("state", ""))


def wait_for_reason(namespace: Namespace, name: str, kind: str, reason: str, seconds: float = 60) -> dict[str, Any]:
    def find() -> dict[str, Any] | None:
        found = namespace.get("atj", name)
        return found if conditions(found).get(kind, ("", ""))[1] == reason else None

    return wait_for(f"{kind} {reason} of {name}", find, seconds=seconds)


# Five hundred jobs, before other tests load the cluster


@pytest.mark.nightly
async def test_the_operator_handles_five_hundred_jobs_at_once(namespace: Namespace, tmp_path: Path):
    number = 500
    namespace.apply(config_map(TEAM))
    with operator_process(namespace.name, tmp_path / "operator.log") as operator:
        manifests = [named_job(f"job-{index}", suspend=True) for index in range(number)]
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"apiVersion": "v1", "kind": "List", "items": manifests}, file)
            file.flush()
            await asyncio.to_thread(namespace.kubectl, "create", f"--filename={file.name}", timeout=300)
        async with ray_job_statuses(namespace.name) as cluster:
            deadline = time.monotonic() + 300
            while sum(state(found) == "Suspended" for found in await cluster.jobs()) < number:
                assert time.monotonic() < deadline
                await asyncio.sleep(2)
        writes, memory = operator.writes(), operator.memory_mib()
        errors = operator.metric("turnmill_operator_errors_total")

    assert writes <= 6 * number
    assert errors == 0
    assert memory < 250


# Single jobs


def test_a_job_reports_what_is_missing_until_it_can_run(namespace: Namespace, operator: OperatorProcess):
    namespace.apply(
        named_job("greedy", resources__train={"nodes": 4}),
        named_job("foreign", resources__train={"accelerator": "B200"}),
    )

    lacks_team = wait_for_reason(namespace, "greedy", "Admitted", "NoTeam")
    namespace.apply(config_map(TEAM))
    wait_for_reason(namespace, "foreign", "Admitted", "NoSuchAccelerator")
    lacks_nodes = wait_for_reason(namespace, "greedy", "Admitted", "TooManyNodes")
    namespace.kubectl("patch", "atj", "greedy", "--type=merge", '--patch={"spec":{"resources":{"train":{"nodes":2}}}}')
    admitted = wait_for_reason(namespace, "greedy", "Admitted", "Admitted")

    assert lacks_team["status"]["observedGeneration"] == lacks_nodes["status"]["observedGeneration"] == 1
    assert admitted["status"]["observedGeneration"] == 2
    (ray_job,) = namespace.list("rayjobs")
    (group,) = ray_job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert (ray_job["metadata"]["name"], group["groupName"], group["replicas"]) == ("greedy-1", "h100", 2)
    events = {event["reason"] for event in namespace.list("events") if event["involvedObject"]["name"] == "greedy"}
    assert {"NoTeam", "TooManyNodes", "AttemptStarted"} <= events


def test_a_refused_job_does_not_affect_other_jobs(namespace: Namespace, operator: OperatorProcess):
    namespace.apply(config_map(TEAM))
    quota = {**NO_CLUSTERS, "metadata": {"name": "one"}, "spec": {"hard": {"count/rayjobs.ray.io": "1"}}}
    namespace.apply(quota)
    namespace.apply(named_job("first", suspend=True))
    wait_for_reason(namespace, "first", "Suspended", "SuspendedBySpec")

    namespace.apply(named_job("second", suspend=True))

    refused = wait_for_reason(namespace, "second", "Admitted", "RayJobRefused")
    assert "exceeded quota: one" in refused["status"]["conditions"][0]["message"]
    assert operator.is_healthy()


def test_a_job_is_suspended_resumed_and_deleted(namespace: Namespace, operator: OperatorProcess):
    namespace.apply(config_map(TEAM), named_job("job", suspend=True))
    wait_for_reason(namespace, "job", "Suspended", "SuspendedBySpec")
    namespace.kubectl("patch", "atj", "job", "--type=merge", '--patch={"spec":{"suspend":false}}')
    wait_for_reason(namespace, "job", "ClusterReady", "WaitingForPods")

    namespace.kubectl("patch", "atj", "job", "--type=merge", '--patch={"spec":{"suspend":true}}')
    wait_for_reason(namespace, "job", "Suspended", "SuspendedBySpec")
    namespace.kubectl("patch", "atj", "job", "--type=merge", '--patch={"spec":{"suspend":false}}')

    wait_for(
        "second attempt", lambda: [r for r in namespace.list("rayjobs") if r["metadata"]["name"] == "job-2"], seconds=60
    )
    wait_for("end of the first one", lambda: len(namespace.list("rayjobs")) == 1, seconds=60)
    found = namespace.get("atj", "job")
    assert found is not None
    assert (found["status"]["attempt"], found["status"]["failedAttempts"]) == (2, 0)
    namespace.delete("atj", "job")
    wait_for("nothing", lambda: not namespace.list("rayjobs,rayclusters,jobs,pods"), seconds=60)


def evict(namespace: Namespace, pod: str) -> None:
    """Evict a pod, as `kubectl drain` does."""
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace.name}}
    path = f"/api/v1/namespaces/{namespace.name}/pods/{pod}/eviction"
    namespace.kubectl("create", f"--raw={path}", "--filename=-", stdin=json.dumps(eviction))


async def test_an_attempt_whose_pod_is_evicted_does_not_count_as_failed(
    namespace: Namespace, operator: OperatorProcess
):
    namespace.apply(config_map(TEAM), named_job("job", retries=0))
    wait_for_reason(namespace, "job", "ClusterReady", "WaitingForPods")
    (ray_job,) = namespace.list("rayjobs")
    # It waits for a node that does not exist, so that the eviction ends no process.
    nowhere = {"containers": [{"name": "ray", "image": "turnmill/none:0"}], "nodeSelector": {"turnmill.dev/none": ""}}
    labels = {"turnmill.dev/job": "job", "turnmill.dev/attempt": "1"}
    namespace.apply(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "job-1-head", "labels": labels}, "spec": nowhere}
    )

    evict(namespace, "job-1-head")
    wait_for("end of the pod", lambda: namespace.get("pod", "job-1-head") is None, seconds=60)
    async with ray_job_statuses(namespace.name) as cluster:
        await cluster.end(ray_job, succeeded=False)

    wait_for("second attempt", lambda: namespace.get("rayjob", "job-2"), seconds=60)
    status = (namespace.get("atj", "job") or {})["status"]
    assert (status["attempt"], status["failedAttempts"], status["disruptedAttempts"]) == (2, 0, 1)


def test_a_failed_job_continues_once_its_retries_are_raised(namespace: Namespace, operator: OperatorProcess):
    namespace.apply(config_map(TEAM), named_job("job", retries=0))
    wait_for_reason(namespace, "job", "ClusterReady", "WaitingForPods")
    namespace.delete("rayjob", "job-1")
    wait_for_reason(namespace, "job", "Failed", "RayJobDeleted")

    namespace.kubectl("patch", "atj", "job", "--type=merge", '--patch={"spec":{"retries":1}}')

    wait_for("second attempt", lambda: namespace.get("rayjob", "job-2"), seconds=60)
    found = wait_for_reason(namespace, "job", "ClusterReady", "WaitingForPods")
    assert (found["status"]["attempt"], found["status"]["failedAttempts"]) == (2, 1)
    assert conditions(found)["Failed"] == ("False", "NotFinished")


def test_a_job_is_deleted_even_if_its_clean_up_cannot_run(namespace: Namespace, operator: OperatorProcess):
    namespace.apply(config_map(CLEAN_UP_TEAM), named_job("job", suspend=True))
    held = wait_for_reason(namespace, "job", "Suspended", "SuspendedBySpec")
    assert held["metadata"]["finalizers"] == ["turnmill.dev/clean-up"]

    began = time.monotonic()
    namespace.kubectl("delete", "atj", "job", "--wait=false")
    wait_for("clean-up", lambda: namespace.get("job", "job-clean-up"), seconds=60)
    wait_for("end", lambda: namespace.get("atj", "job") is None, seconds=180)

    assert time.monotonic() - began < 180
    wait_for("nothing", lambda: not namespace.list("rayjobs,jobs,pods"), seconds=60)


def test_two_replicas_perform_each_action_once(namespace: Namespace, tmp_path: Path):
    with (
        operator_process(namespace.name, tmp_path / "a.log", environment={"POD_NAME": "a"}) as first,
        operator_process(namespace.name, tmp_path / "b.log", environment={"POD_NAME": "b"}) as second,
    ):
        namespace.apply(config_map(TEAM), named_job("job", suspend=True))
        wait_for_reason(namespace, "job", "Suspended", "SuspendedBySpec")
        assert [replica.metric("turnmill_operator_leader") for replica in (first, second)] == [1, 0]
        assert second.writes() == 0

        first.stop()
        namespace.apply(named_job("next", suspend=True))
        wait_for_reason(namespace, "next", "Suspended", "SuspendedBySpec", seconds=60)

        assert second.metric("turnmill_operator_leader") == 1
        assert second.metric("turnmill_operator_errors_total") == 0


# Fifty jobs through faults

NUM_JOBS = 50
PLANS = {
    "well": ({}, ["SUCCEEDED"], ("Complete", 1, 0)),
    "again": ({"retries": 1}, ["FAILED", "SUCCEEDED"], ("Complete", 2, 1)),
    "never": ({"retries": 1}, ["FAILED"], ("Failed", 2, 2)),
    "once": ({"retries": 0}, ["FAILED"], ("Failed", 1, 1)),
}


def plans_of_jobs() -> dict[str, str]:
    """Return the names of the jobs, each with the name of its plan."""
    kinds = list(PLANS)
    return {f"{kinds[number % 4]}-{number}": kinds[number % 4] for number in range(NUM_JOBS)}


async def advance(cluster: RayJobStatuses, jobs: Mapping[str, str]) -> None:
    """Bring every RayJob one step further: it runs, then it ends as its job's plan says."""
    for ray_job in await cluster.ray_jobs():
        status = ray_job.get("status", {})
        name, _, attempt = ray_job["metadata"]["name"].rpartition("-")
        if status.get("jobDeploymentStatus") == "Initializing":
            await cluster.write(ray_job, jobStatus="RUNNING", jobDeploymentStatus="Running")
        elif status.get("jobDeploymentStatus") == "Running":
            outcomes = PLANS[jobs[name]][1]
            await cluster.end(ray_job, succeeded=outcomes[min(int(attempt), len(outcomes)) - 1] == "SUCCEEDED")


async def all_ended(cluster: RayJobStatuses) -> bool:
    found = await cluster.jobs()
    return len(found) == NUM_JOBS and all(state(resource) in ("Complete", "Failed") for resource in found)


async def advance_until_all_ended(cluster: RayJobStatuses, jobs: Mapping[str, str], *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not await all_ended(cluster):
        assert time.monotonic() < deadline, {r["metadata"]["name"]: state(r) for r in await cluster.jobs()}
        await advance(cluster, jobs)
        await asyncio.sleep(1)


async def outcomes(cluster: RayJobStatuses) -> dict[str, tuple[str, int, int]]:
    return {
        found["metadata"]["name"]: (state(found), found["status"]["attempt"], found["status"]["failedAttempts"])
        for found in await cluster.jobs()
    }


@pytest.mark.nightly
async def test_fifty_jobs_end_correctly_through_twenty_operator_restarts(namespace: Namespace, tmp_path: Path):
    jobs, chance = plans_of_jobs(), random.Random(0)
    namespace.apply(config_map(TEAM))
    replicas = [
        OperatorProcess(namespace.name, tmp_path / f"{name}.log", environment={"POD_NAME": name}) for name in ("a", "b")
    ]
    try:
        namespace.apply(*(named_job(name, **PLANS[kind][0]) for name, kind in jobs.items()))
        async with ray_job_statuses(namespace.name) as cluster:
            for _ in range(20):
                replica = chance.choice(replicas)
                # The Lease of a killed leader lasts for half a minute, so most restarts are graceful.
                await asyncio.to_thread(replica.restart, kill=chance.random() < 0.25)
                pause = time.monotonic() + chance.uniform(1, 5)
                while time.monotonic() < pause:
                    await advance(cluster, jobs)
                    await asyncio.sleep(0.5)
            await advance_until_all_ended(cluster, jobs, seconds=240)
            found = await outcomes(cluster)
            ray_jobs = await cluster.ray_jobs()
    finally:
        for replica in replicas:
            replica.stop()

    assert found == {name: PLANS[kind][2] for name, kind in jobs.items()}
    assert len(ray_jobs) == NUM_JOBS


@contextmanager
def cuttable_link(toxiproxy: Toxiproxy, folder: Path) -> Iterator[tuple[Any, Path]]:
    """A link to the API server that can be cut, and a KUBECONFIG that uses it."""
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    cluster = config["clusters"][0]["cluster"]
    server = urlsplit(cluster["server"])
    assert server.hostname
    link = toxiproxy.link(server.port or 443, host=server.hostname)
    # The certificate is not valid for the address of the link.
    cluster.pop("certificate-authority-data", None)
    cluster.pop("certificate-authority", None)
    cluster |= {"server": f"https://127.0.0.1:{link.port}", "insecure-skip-tls-verify": True}
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    yield link, file


@pytest.mark.nightly
@pytest.mark.skipif(toxiproxy_server() is None, reason="needs toxiproxy-server")
async def test_fifty_jobs_end_correctly_after_an_api_server_outage_of_30_seconds(namespace: Namespace, tmp_path: Path):
    jobs = plans_of_jobs()
    namespace.apply(config_map(TEAM))
    program = toxiproxy_server()
    assert program is not None
    with (
        Toxiproxy(program) as toxiproxy,
        cuttable_link(toxiproxy, tmp_path) as (link, kubeconfig),
        operator_process(
            namespace.name, tmp_path / "operator.log", environment={"KUBECONFIG": str(kubeconfig)}
        ) as operator,
    ):
        namespace.apply(*(named_job(name, **PLANS[kind][0]) for name, kind in jobs.items()))
        async with ray_job_statuses(namespace.name) as cluster:
            await asyncio.sleep(2)
            link.cut()
            until = time.monotonic() + 30
            while time.monotonic() < until:
                await advance(cluster, jobs)
                await asyncio.sleep(1)
            assert operator.is_healthy()
            link.restore()
            await advance_until_all_ended(cluster, jobs, seconds=240)
            found = await outcomes(cluster)
        pid = operator.process.pid
        assert operator.process.poll() is None, pid

    assert found == {name: PLANS[kind][2] for name, kind in jobs.items()}
