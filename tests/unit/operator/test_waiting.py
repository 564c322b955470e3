"""Reasons why an attempt does not start, and how often they are looked up."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.ray_jobs import START, Raw, at, raw_job, raw_ray_job, stamp
from turnmill_operator import waiting
from turnmill_operator.api import EVENTS, PODS, WORKLOADS, ApiError, Resource
from turnmill_operator.views import Observed, job_view, ray_job_view
from turnmill_operator.waiting import WaitReasons, describe_pending_pods, describe_workload
from turnmill_operator.work_queue import WorkQueue

HELD = raw_ray_job(held=True, queue="q", jobDeploymentStatus="Suspended")
STARTING = raw_ray_job(jobDeploymentStatus="Initializing", rayClusterName="job-1-c", startTime="2026-01-01T00:00:00Z")


class Lister:
    """An API server that lists pods and Workloads; it refuses kinds of which it has none."""

    def __init__(self, **objects: list[Raw]) -> None:
        self.objects = objects
        self.events: dict[str, list[Raw]] = {}
        self.requests: list[str] = []

    async def list(
        self, resource: Resource, namespace: str, *, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Raw]:
        if resource is EVENTS:
            name = fields.removeprefix("involvedObject.name=").removesuffix(",type=Warning")
            for found in self.events.get(name, ()):
                yield found
            return
        self.requests.append(f"{resource.group_version} {labels}")
        if resource.group_version not in self.objects:
            raise ApiError(404, "the server could not find the requested resource")
        for found in self.objects[resource.group_version]:
            yield found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(waiting.time, "monotonic", lambda: now[0])
    return now


def workload(**conditions: str) -> Raw:
    return {"status": {"conditions": [{"type": k, "status": "False", "message": v} for k, v in conditions.items()]}}


async def reasons(found: WaitReasons, ray_job: Raw, seconds: float = 60) -> tuple[str, str]:
    observed = Observed(ray_jobs=(ray_job_view(ray_job),))
    after = await found.add_to(observed, job_view(raw_job()), at(seconds))
    return after.pending_pods, after.queue_message


def wait_reasons(api: Any) -> WaitReasons:
    return WaitReasons(api, WorkQueue())


def test_reasons_of_pending_pods_are_not_repeated():
    unscheduled = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes: no GPU"}]}
    pulling = {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}]}
    starting = {"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}, {"state": {}}]}

    description = describe_pending_pods(
        [{"status": status} for status in (unscheduled, unscheduled, pulling, starting, {})]
    )

    assert description == "0/1 nodes: no GPU; ErrImagePull: not found"


def test_the_reason_of_a_workload_is_that_of_its_quota_or_of_its_admission():
    assert describe_workload(workload(QuotaReserved="LocalQueue q doesn't exist", Admitted="No reservation")) == (
        "LocalQueue q doesn't exist"
    )
    assert describe_workload(workload(Admitted="Waiting for checks.")) == "Waiting for checks"
    assert describe_workload({}) == ""


async def test_the_reason_of_a_held_run_comes_from_its_workload_and_that_of_a_starting_one_from_its_pods(clock):
    api = Lister(**{WORKLOADS[0].group_version: [workload(QuotaReserved="too little cpu")]})
    assert await reasons(wait_reasons(api), HELD) == ("", "too little cpu")

    pods = [{"status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "no GPU"}]}}]
    api = Lister(**{PODS.group_version: pods})
    assert await reasons(wait_reasons(api), STARTING) == ("no GPU", "")


def test_a_container_that_has_ended_is_a_reason_with_what_it_said():
    ended = {"name": "ray", "state": {"terminated": {"exitCode": 1, "message": "no such\nlibrary.\n"}}}
    back_off = {
        "name": "ray",
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
        "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
    }
    done = {"name": "init", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}

    description = describe_pending_pods(
        [{"status": {"initContainerStatuses": [done], "containerStatuses": [status]}} for status in (ended, back_off)]
    )

    assert description == (
        "container ray ended with exit code 1: no such library; CrashLoopBackOff: back-off 10s; "
        "container ray ended with exit code 137: OOMKilled"
    )


async def test_pods_that_kuberay_cannot_create_are_told_in_the_words_of_the_api_server(clock):
    refused = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreateHeadPod",
        "message": 'FailedCreateHeadPod\npods "job-1-c-head" is forbidden: exceeded quota: team',
    }
    ray_job = raw_ray_job(
        jobDeploymentStatus="Initializing",
        rayClusterName="job-1-c",
        startTime="2026-01-01T00:00:00Z",
        rayClusterStatus={"conditions": [refused]},
    )

    found = await reasons(wait_reasons(Lister(**{PODS.group_version: []})), ray_job)

    assert found == ('FailedCreateHeadPod: pods "job-1-c-head" is forbidden: exceeded quota: team', "")


async def test_a_reason_that_is_in_no_status_comes_from_the_last_warning_of_pod_cluster_or_rayjob(clock):
    creating = {
        "metadata": {"name": "job-1-c-head"},
        "status": {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]},
    }
    api = Lister(**{PODS.group_version: [creating]})
    api.events["job-1-c-head"] = [warning("FailedMount", "mount timed out", 20), warning("FailedScheduling", "old", 10)]
    assert await reasons(wait_reasons(api), STARTING) == ("FailedMount: mount timed out", "")

    api = Lister(**{PODS.group_version: []})
    api.events["job-1"] = [warning("FailedToCreateRayCluster", "denied by policy\nno-gpus.", 20)]
    assert await reasons(wait_reasons(api), STARTING) == ("FailedToCreateRayCluster: denied by policy no-gpus", "")


def warning(reason: str, message: str, seconds: float) -> Raw:
    return {"metadata": {}, "reason": reason, "message": message, "lastTimestamp": stamp(at(seconds))}


async def test_an_older_kueue_is_asked_in_its_version_and_a_missing_one_gives_no_reason(clock):
    older = Lister(**{WORKLOADS[1].group_version: [workload(QuotaReserved="no quota")]})

    assert await reasons(wait_reasons(older), HELD) == ("", "no quota")
    assert await reasons(wait_reasons(Lister()), HELD) == ("", "")


async def test_reasons_are_looked_up_twice_a_minute_and_at_once_when_the_run_is_admitted(clock):
    api = Lister(**{WORKLOADS[0].group_version: [], PODS.group_version: []})
    found = wait_reasons(api)

    for seconds in (0, 10, 29, 31, 40):
        clock[0] = 100.0 + seconds
        await reasons(found, HELD)
    assert len(api.requests) == 2

    await reasons(found, STARTING)
    assert len(api.requests) == 3


@pytest.mark.parametrize(("ray_job", "seconds"), [(HELD, 2), (STARTING, 14)])
async def test_a_run_that_has_just_begun_to_wait_is_not_looked_up(clock, ray_job, seconds):
    api = Lister()

    assert await reasons(wait_reasons(api), ray_job, seconds) == ("", "")
    assert api.requests == []
    assert at(0) == START


async def test_the_younger_of_two_jobs_that_block_each_other_learns_it_from_fresh_pods(clock):
    container = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}
    pods = [
        {"metadata": {"name": "a"}, "spec": {"containers": [container], "nodeName": "a"}},
        {"metadata": {"name": "b"}, "spec": {"containers": [container]}, "status": {"conditions": [unschedulable]}},
    ]
    found = wait_reasons(Lister(**{PODS.group_version: pods}))
    observed = Observed(ray_jobs=(ray_job_view(STARTING),))
    older, younger = raw_job(), raw_job()
    older["metadata"] = {**older["metadata"], "name": "older", "creationTimestamp": "2025-01-01T00:00:00Z"}
    views = job_view(older), job_view(younger)

    async def answers(seconds: float) -> list[str]:
        return [(await found.add_to(observed, view, at(seconds))).gives_way_to for view in views]

    assert await answers(60) == ["", ""]
    clock[0] += 300
    name = "/".join(views[0].key)
    assert await answers(360) == ["", name]
    assert await answers(361) == ["", ""]
    clock[0] += 300
    found.forget(views[0].key)
    assert (await found.add_to(observed, views[1], at(660))).gives_way_to == ""
