"""Reasons why an attempt does not start, and how often they are looked up."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.ray_jobs import START, Raw, at, raw_job, raw_ray_job
from turnmill_operator import waiting
from turnmill_operator.api import PODS, WORKLOADS, ApiError, Resource
from turnmill_operator.views import Observed, job_view, ray_job_view
from turnmill_operator.waiting import WaitReasons, describe_pending_pods, describe_workload
from turnmill_operator.work_queue import WorkQueue

HELD = raw_ray_job(held=True, queue="q", jobDeploymentStatus="Suspended")
STARTING = raw_ray_job(jobDeploymentStatus="Initializing", rayClusterName="job-1-c", startTime="2026-01-01T00:00:00Z")


class Lister:
    """An API server that lists pods and Workloads; it refuses kinds of which it has none."""

    def __init__(self, **objects: list[Raw]) -> None:
        self.objects = objects
        self.requests: list[str] = []

    async def list(self, resource: Resource, namespace: str, *, labels: str) -> AsyncIterator[Raw]:
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
