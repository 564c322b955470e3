"""Reconciliation under random orders of late watches, lost events, restarts, failing requests and two leaders."""

import asyncio
import contextlib
import copy
import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.ray_jobs import NAMESPACE, KubeRayDouble, pod_template, raw_job, raw_ray_job, raw_team
from turnmill_operator.api import BATCH_JOBS, JOBS, RAY_JOBS, ApiClient, ApiError, Resource
from turnmill_operator.cache import Cache
from turnmill_operator.reconciler import Reconciler
from turnmill_operator.views import KubeRay, ObjectKey, team_view
from turnmill_operator.work_queue import WorkQueue

KEY = ObjectKey(NAMESPACE, "job")


class ApiDouble(ApiClient):
    """The API server of a `KubeRayDouble`; requests fail as `faults` says: before they count, or after."""

    def __init__(self, cluster: KubeRayDouble) -> None:
        self.cluster = cluster
        self.faults: Iterator[str] = iter(())
        self.writes: list[str] = []
        self.events: dict[str, dict[str, Any]] = {}
        self.clean_ups: dict[str, dict[str, Any]] = {}
        self.refusal = ""
        self.refused: set[str] = set()

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Any:
        self._maybe_fail("before")
        if resource is JOBS:
            return self.cluster.job
        if resource is BATCH_JOBS:
            return self.clean_ups.get(name)
        return self.cluster.ray_jobs.get(name)

    async def list(self, resource: Resource, namespace: str | None, *, labels: str = "", **_: Any) -> Any:
        self._maybe_fail("before")
        wanted = dict(label.split("=") for label in labels.split(",") if "=" in label)
        for found in list(self.cluster.ray_jobs.values()) if resource is RAY_JOBS else ():
            if found["metadata"]["labels"].items() >= wanted.items():
                yield found

    async def apply(self, manifest: dict[str, Any]) -> Any:
        name, kind = manifest["metadata"]["name"], manifest["kind"]
        with self._write(f"apply {kind} {name}"):
            if kind in self.refused:
                raise ApiError(403, "namespace is being terminated")
            if kind == "Event":
                self.events[name] = manifest
                return manifest
            if kind == "Job":
                self.clean_ups[name] = {**manifest, "status": {"conditions": [{"type": "Complete", "status": "True"}]}}
                return manifest
            if self.refusal:
                raise ApiError(403, self.refusal)
            return self.cluster.apply(json.loads(json.dumps(manifest)))

    async def apply_job(self, key: ObjectKey, uid: str, version: int, **fields: Any) -> Any:
        with self._write(f"apply {next(iter(fields))}"):
            job = self.cluster.job
            if job is None:
                raise ApiError(404, "not found")
            if int(job["metadata"]["resourceVersion"]) != version:
                raise ApiError(409, "conflict")
            return self.cluster.write_job(**json.loads(json.dumps(fields)))

    async def delete(self, resource: Resource, namespace: str, name: str, **_: Any) -> None:
        with self._write(f"delete {name}"):
            if resource is RAY_JOBS:
                self.cluster.delete(name)
            else:
                self.cluster.job = None

    def _write(self, what: str) -> "_Write":
        return _Write(self, what)

    def _maybe_fail(self, when: str) -> None:
        if next(self.faults, "") == when:
            raise ApiError(0, "unreachable")


class _Write:
    """A write that may be lost on the way there, or whose answer may be lost on the way back."""

    def __init__(self, api: ApiDouble, what: str) -> None:
        self._api, self._what = api, what

    def __enter__(self) -> None:
        self._fault = next(self._api.faults, "")
        if self._fault == "before":
            raise ApiError(0, "unreachable")

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self._api.writes.append(self._what)
            if self._fault == "after":
                raise ApiError(0, "connection lost")


class _Queue(WorkQueue):
    """A queue without delays: the test calls the reconciler."""

    def add_after(self, key: ObjectKey, seconds: float) -> None:
        assert seconds < 1e6


class Replica:
    """An operator with a cache that may be stale."""

    def __init__(self, api: ApiDouble, team: Any) -> None:
        self.api, self._team = api, team
        self.restart()

    def restart(self) -> None:
        self.cache = Cache()
        self.cache.kuberay = KubeRay()
        self.cache.teams[NAMESPACE] = self._team
        self.reconciler = Reconciler(self.api, self.cache, _Queue(), lambda: self.api.cluster.now)
        self.refresh_all()

    def refresh_job(self) -> None:
        if self.api.cluster.job is None:
            self.cache.drop_job(KEY)
        else:
            self.cache.put_job(self.api.cluster.job)

    def refresh_ray_jobs(self) -> None:
        for view in self.cache.ray_jobs(KEY):
            if view.name not in self.api.cluster.ray_jobs:
                self.cache.drop_ray_job(KEY, view.name)
        for raw in self.api.cluster.ray_jobs.values():
            self.cache.put_ray_job(raw)

    def refresh_all(self) -> None:
        self.refresh_job()
        self.refresh_ray_jobs()

    async def reconcile(self) -> None:
        with contextlib.suppress(ApiError):
            await self.reconciler.reconcile(KEY)


def make_cluster(outcomes: list[str], **job: Any) -> tuple[KubeRayDouble, ApiDouble]:
    cluster = KubeRayDouble(raw_job(**job), outcomes)
    return cluster, ApiDouble(cluster)


def running(cluster: KubeRayDouble) -> list[str]:
    return [
        name
        for name, raw in cluster.ray_jobs.items()
        if raw.get("status", {}).get("jobDeploymentStatus") in ("Initializing", "Running")
    ]


async def settle(cluster: KubeRayDouble, replica: Replica, seconds: float = 400) -> None:
    """Reconcile without faults until nothing changes."""
    quiet = 0
    for _ in range(80):
        before = copy.deepcopy((cluster.job, cluster.ray_jobs))
        replica.refresh_all()
        await replica.reconcile()
        cluster.step()
        cluster.now += timedelta(seconds=seconds)
        quiet = quiet + 1 if (cluster.job, cluster.ray_jobs) == before else 0
        if quiet == 2:
            return
    raise AssertionError("does not settle")


def expected(outcomes: list[str], retries: int) -> tuple[str, int, int]:
    """Return the final state, attempts and failed attempts for these outcomes."""
    for attempt in range(1, retries + 2):
        outcome = outcomes[min(attempt, len(outcomes)) - 1]
        if outcome == "SUCCEEDED":
            return "Complete", attempt, attempt - 1
        if outcome == "2":
            return "Failed", attempt, attempt
    return "Failed", retries + 1, retries + 1


THOROUGH = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
STEPS = (
    "refresh job",
    "refresh ray jobs",
    "refresh all",
    "reconcile",
    "reconcile",
    "reconcile",
    "kuberay",
    "kuberay",
    "time",
    "restart",
    "other",
)
FAULTS = st.lists(st.sampled_from(["", "", "", "", "before", "after"]), max_size=60)
OUTCOMES = st.lists(st.sampled_from(["1", "1", "3", "2", "SUCCEEDED"]), min_size=1, max_size=4)


@THOROUGH
@given(
    outcomes=OUTCOMES,
    retries=st.integers(0, 3),
    steps=st.lists(st.sampled_from(STEPS), max_size=40),
    faults=FAULTS,
    clean_up=st.booleans(),
)
def test_the_final_state_depends_on_the_outcomes_alone(
    outcomes: list[str], retries: int, steps: list[str], faults: list[str], clean_up: bool
):
    team = team_view(raw_team(**({"cleanUp": {"template": pod_template()}} if clean_up else {})))
    cluster, api = make_cluster(outcomes, retries=retries)

    async def run_steps() -> None:
        replicas = [Replica(api, team), Replica(api, team)]
        api.faults = iter(faults)
        for step in steps:
            await act(step, cluster, replicas)
            assert len(running(cluster)) <= 1
        api.faults = iter(())
        replicas[0].restart()
        await settle(cluster, replicas[0])

    asyncio.run(run_steps())

    state, attempts, failed = expected(outcomes, retries)
    assert cluster.job is not None
    status = cluster.job["status"]
    assert (status["state"], status["attempt"], status["failedAttempts"]) == (state, attempts, failed)
    assert cluster.started == [f"job-{number}" for number in range(1, attempts + 1)]
    assert list(cluster.ray_jobs) == [f"job-{attempts}"]


@THOROUGH
@given(
    outcomes=OUTCOMES,
    retries=st.integers(0, 3),
    steps=st.lists(st.sampled_from((*STEPS, "suspend", "resume", "suspend", "resume")), max_size=80),
    faults=FAULTS,
    created_suspended=st.booleans(),
)
def test_no_attempt_runs_twice_however_often_a_job_is_suspended(
    outcomes: list[str], retries: int, steps: list[str], faults: list[str], created_suspended: bool
):
    cluster, api = make_cluster(outcomes, retries=retries, suspend=created_suspended)

    async def run_steps() -> None:
        replicas = [Replica(api, team_view(raw_team())), Replica(api, team_view(raw_team()))]
        api.faults = iter(faults)
        for step in steps:
            await act(step, cluster, replicas)
            assert len(running(cluster)) <= 1
        api.faults = iter(())
        cluster.change(suspend=False)
        replicas[0].restart()
        await settle(cluster, replicas[0])

    asyncio.run(run_steps())

    assert cluster.job is not None
    assert cluster.job["status"]["state"] in ("Complete", "Failed")
    assert len(set(cluster.started)) == len(cluster.started)
    numbers = [int(name.removeprefix("job-")) for name in cluster.started]
    assert numbers == sorted(numbers)
    assert cluster.job["status"]["attempt"] == numbers[-1]


@THOROUGH
@given(
    # No time passes, because the clean-up is skipped after its deadline.
    steps=st.lists(st.sampled_from((*(step for step in STEPS if step != "time"), "user deletes")), max_size=40),
    faults=FAULTS,
)
def test_a_deleted_job_leaves_no_rayjob_and_no_finalizer(steps: list[str], faults: list[str]):
    team = team_view(raw_team(cleanUp={"template": pod_template()}))
    cluster, api = make_cluster(["SUCCEEDED"])

    async def run_steps() -> None:
        replicas = [Replica(api, team), Replica(api, team)]
        api.faults = iter(faults)
        for step in steps:
            await act(step, cluster, replicas)
        api.faults = iter(())
        delete(cluster)
        replicas[0].restart()
        await settle(cluster, replicas[0], seconds=1)

    asyncio.run(run_steps())

    assert cluster.job is None or not cluster.job["metadata"].get("finalizers")
    assert not cluster.ray_jobs or not cluster.started
    # If an attempt was started, its part of the trajectory store was cleaned up.
    assert not cluster.started or api.clean_ups


async def act(step: str, cluster: KubeRayDouble, replicas: list[Replica]) -> None:
    leader = replicas[0]
    match step:
        case "refresh job":
            leader.refresh_job()
        case "refresh ray jobs":
            leader.refresh_ray_jobs()
        case "refresh all":
            leader.refresh_all()
        case "reconcile":
            await leader.reconcile()
        case "kuberay":
            cluster.step()
        case "time":
            cluster.now += timedelta(seconds=100)
        case "restart":
            leader.restart()
        case "other":
            # Another replica takes over with a cache that is as old as its own watches.
            replicas.reverse()
        case "suspend" | "resume":
            cluster.change(suspend=step == "suspend")
        case "user deletes":
            delete(cluster)


def delete(cluster: KubeRayDouble) -> None:
    if cluster.job is None:
        return
    if not cluster.job["metadata"].get("finalizers"):
        cluster.job = None
        for name in list(cluster.ray_jobs):
            cluster.delete(name)
        return
    stamp = cluster.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    cluster.write_job(finalizers=cluster.job["metadata"]["finalizers"])
    cluster.job["metadata"].setdefault("deletionTimestamp", stamp)


# Single reconciliations


async def make_replica(**job: Any) -> tuple[KubeRayDouble, ApiDouble, Replica]:
    cluster, api = make_cluster(["SUCCEEDED"], **job)
    return cluster, api, Replica(api, team_view(raw_team()))


async def test_starting_a_job_takes_three_writes():
    _, api, replica = await make_replica()

    await replica.reconcile()

    assert api.writes == ["apply RayJob job-1", next(w for w in api.writes if "Event" in w), "apply status"]


async def test_reconciling_again_writes_nothing():
    cluster, api, replica = await make_replica()
    for _ in range(8):
        replica.refresh_all()
        await replica.reconcile()
        cluster.step()
    api.writes.clear()

    replica.restart()
    await replica.reconcile()

    assert api.writes == []


async def test_a_replica_with_a_stale_cache_restarts_no_attempt():
    cluster, api, leader = await make_replica()
    stale_replica = Replica(api, team_view(raw_team()))
    for suspend in (False, True, False):
        cluster.change(suspend=suspend)
        leader.refresh_all()
        await leader.reconcile()
        leader.refresh_all()
        await leader.reconcile()
    assert list(cluster.ray_jobs) == ["job-2"]

    await stale_replica.reconcile()

    assert list(cluster.ray_jobs) == ["job-2"]


async def test_a_rayjob_that_a_queue_kept_for_a_later_attempt_is_found_before_it_counts_as_deleted():
    cluster, api = make_cluster(["SUCCEEDED"], queue="q", retries=1)
    replica = Replica(api, team_view(raw_team()))
    await replica.reconcile()
    replica.refresh_all()
    kept = cluster.ray_jobs["job-1"]
    kept["metadata"]["labels"]["turnmill.dev/attempt"] = "2"
    cluster.write_job(status={**(cluster.job or {})["status"], "state": "Running", "attempt": 2})
    replica.restart()
    replica.cache.drop_ray_job(KEY, "job-1")

    await replica.reconcile()

    status = (cluster.job or {})["status"]
    assert (status["attempt"], status["failedAttempts"]) == (2, 0)
    assert list(cluster.ray_jobs) == ["job-1"]


async def test_a_refused_rayjob_is_reported_and_retried():
    cluster, api, replica = await make_replica()
    api.refusal = "exceeded quota: count/rayjobs.ray.io"

    await replica.reconcile()

    assert cluster.job is not None
    assert cluster.job["status"]["state"] == "NotAdmitted"
    assert "exceeded quota" in cluster.job["status"]["conditions"][0]["message"]
    api.refusal = ""
    await replica.reconcile()
    assert list(cluster.ray_jobs) == ["job-1"]


async def test_a_job_whose_clean_up_is_refused_is_released_at_once():
    cluster, api, _ = await make_replica()
    replica = Replica(api, team_view(raw_team(cleanUp={"template": pod_template()})))
    await replica.reconcile()
    delete(cluster)
    replica.refresh_all()
    await replica.reconcile()
    replica.refresh_all()
    api.refused = {"Job"}

    await replica.reconcile()

    assert cluster.job is not None
    assert cluster.job["metadata"]["finalizers"] == []


async def test_refused_events_do_not_block_reconciliation():
    cluster, api, replica = await make_replica()
    api.refused = {"Event"}

    await replica.reconcile()

    assert cluster.job is not None
    assert cluster.job["status"]["state"] == "Starting"


async def test_a_rayjob_of_another_owner_is_left_unchanged():
    cluster, api, replica = await make_replica()
    cluster.ray_jobs["job-1"] = raw_ray_job(uid="of-somebody-else")

    await replica.reconcile()

    assert cluster.job is not None
    assert cluster.job["status"]["conditions"][0]["reason"] == "NameTaken"
    assert "apply RayJob job-1" not in api.writes


async def test_progress_is_written_at_most_every_thirty_seconds(monkeypatch: pytest.MonkeyPatch):
    from turnmill.jobs.status import JobProgress
    from turnmill_operator import reconciler
    from turnmill_operator.views import RunProgress

    clock = [0.0]
    monkeypatch.setattr(reconciler.time, "monotonic", lambda: clock[0])
    cluster, api, replica = await make_replica()
    for _ in range(2):
        await replica.reconcile()
        cluster.step()
        replica.refresh_all()
    writes = []
    for step in range(1, 10):
        api.writes.clear()
        clock[0] += 10
        replica.cache.put_progress(KEY, 1, RunProgress(JobProgress(step=step)))
        await replica.reconcile()
        writes.append(len(api.writes))

    assert writes == [1, 0, 0, 1, 0, 0, 1, 0, 0]


def test_condition_times_have_whole_seconds():
    from turnmill_operator.reconciler import _now

    assert isinstance(_now(), datetime)
    assert _now().microsecond == 0
