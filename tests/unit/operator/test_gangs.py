"""Attempts that block each other, each with a part of its devices."""

from datetime import timedelta
from typing import Any

import pytest

from support.ray_jobs import Raw, at, raw_job, raw_ray_job
from turnmill_operator.gangs import Gangs, partial_gang
from turnmill_operator.views import JobView, RayJobView, job_view, ray_job_view


def pod(*, node: str = "", resource: str = "nvidia.com/gpu", **spec: Any) -> Raw:
    container = {"resources": {"limits": {resource: 1}}}
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    placed = {"nodeName": node} if node else {}
    return {
        "spec": {"containers": [container], **placed, **spec},
        "status": {"conditions": [] if node else [unschedulable]},
    }


def job(name: str, created: float) -> JobView:
    raw = raw_job()
    raw["metadata"] |= {"name": name, "uid": name, "creationTimestamp": at(created).isoformat()}
    return job_view(raw)


HALF = [pod(node="a"), pod()]
RAY_JOB = ray_job_view(raw_ray_job(jobDeploymentStatus="Initializing", rayClusterName="c"))
OLD, YOUNG = job("z-old", 0), job("a-young", 5)
OLD_NAME = "/".join(OLD.key)


def answers(
    *, seconds: float = 120, old: list[Raw] = HALF, young: list[Raw] = HALF, ray_job: RayJobView = RAY_JOB
) -> tuple[str, str]:
    """Return the jobs that the older and the younger have to give way to, after some time of waiting."""
    gangs = Gangs(timedelta(seconds=120))
    for second in (0.0, seconds):
        found = gangs.observe(OLD, ray_job, old, at(second)), gangs.observe(YOUNG, ray_job, young, at(second))
    return found


def test_of_two_jobs_that_block_each_other_the_younger_gives_way_after_the_timeout():
    assert answers(seconds=119) == ("", "")
    assert answers(seconds=120) == ("", OLD_NAME)


@pytest.mark.parametrize(
    "pods", [[pod(node="a"), pod(node="b")], [pod(), pod()], [pod(node="a", resource="cpu"), pod()]]
)
def test_an_attempt_that_is_complete_or_holds_no_devices_blocks_nobody(pods: list[Raw]):
    assert partial_gang(pods) is None
    assert answers(old=pods) == answers(young=pods) == ("", "")


def test_jobs_that_need_different_nodes_do_not_block_each_other():
    h100 = [pod(node="a", nodeSelector={"gpu": "h100"}), pod(nodeSelector={"gpu": "h100"})]
    a100 = [pod(node="b", nodeSelector={"gpu": "a100"}), pod(nodeSelector={"gpu": "a100"})]
    assert answers(old=h100, young=a100) == ("", "")
    assert answers(old=h100, young=HALF) == ("", OLD_NAME)


def test_kueue_and_batch_schedulers_are_left_alone():
    assert answers(ray_job=ray_job_view(raw_ray_job(queue="q"))) == ("", "")
    volcano = [pod(node="a", schedulerName="volcano"), pod(schedulerName="volcano")]
    assert answers(old=volcano, young=volcano) == ("", "")


def test_the_time_begins_anew_with_each_attempt_and_ends_with_the_older_jobs_wait():
    gangs = Gangs(timedelta(seconds=120))
    gangs.observe(OLD, RAY_JOB, HALF, at(0))
    gangs.observe(YOUNG, RAY_JOB, HALF, at(0))
    second = ray_job_view(raw_ray_job(attempt=2))
    assert gangs.observe(YOUNG, second, HALF, at(130)) == ""
    assert gangs.observe(YOUNG, second, HALF, at(250)) == OLD_NAME
    gangs.forget(OLD.key)
    assert gangs.observe(YOUNG, second, HALF, at(260)) == ""


def test_a_timeout_of_zero_never_gives_way():
    gangs = Gangs(timedelta(0))
    gangs.observe(OLD, RAY_JOB, HALF, at(0))
    assert gangs.observe(YOUNG, RAY_JOB, HALF, at(9999)) == ""
