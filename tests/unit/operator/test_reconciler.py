"""Random orders of watches that lag, lost events, restarts, failing requests and two leaders: the end is the same."""

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

    def __init__(self, world: KubeRayDouble) -> None:
        self.world = world
        self.faults: Iterator[str] = iter(())
        self.writes: list[str] = []
        self.events: dict[str, dict[str, Any]] = {}
        self.clean_ups: dict[str, dict[str, Any]] = {}
        self.refusal = ""
        self.refused: set[str] = set()

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Any:
        self._maybe_fail("before")
        if resource is JOBS:
            return self.world.job
        if resource is BATCH_JOBS:
            return self.clean_ups.get(name)
        return self.world.ray_jobs.get(name)

    async def list(self, *_: Any, **__: Any) -> Any:
        for nothing in ():
            yield nothing

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
            return self.world.apply(json.loads(json.dumps(manifest)))

    async def apply_job(self, key: ObjectKey, uid: str, version: int, **fields: Any) -> Any:
        with self._write(f"apply {next(iter(fields))}"):
            job = self.world.job
            if job is None:
                raise ApiError(404, "not found")
            if int(job["metadata"]["resourceVersion"]) != version:
                raise ApiError(409, "conflict")
            return self.world.write_job(**json.loads(json.dumps(fields)))

    async def delete(self, resource: Resource, namespace: str, name: str, **_: Any) -> None:
        with self._write(f"delete {name}"):
            if resource is RAY_JOBS:
                self.world.delete(name)
            else:
                self.world.job = None

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
    """The test says when to look."""

    def add_after(self, key: ObjectKey, seconds: float) -> None:
        assert seconds < 1e6


class Replica:
    """An operator with what it has seen, which may be old."""

    def __init__(self, api: ApiDouble, team: Any) -> None:
        self.api, self._team = api, team
        self.restart()

    def restart(self) -> None:
        self.cache = Cache()
        self.cache.kuberay = KubeRay()
        self.cache.teams[NAMESPACE] = self._team
        self.reconciler = Reconciler(self.api, self.cache, _Queue(), lambda: self.api.world.now)
        self.see_all()

    def see_job(self) -> None:
        if self.api.world.job is None:
            self.cache.drop_job(KEY)
        else:
            self.cache.put_job(self.api.world.job)

    def see_ray_jobs(self) -> None:
        for view in self.cache.ray_jobs(KEY):
            if view.name not in self.api.world.ray_jobs:
                self.cache.drop_ray_job(KEY, view.name)
        for raw in self.api.world.ray_jobs.values():
            self.cache.put_ray_job(raw)

    def see_all(self) -> None:
        self.see_job()
        self.see_ray_jobs()

    async def look(self) -> None:
        with contextlib.suppress(ApiError):
            await self.reconciler.reconcile(KEY)


def world_of(outcomes: list[str], **job: Any) -> tuple[KubeRayDouble, ApiDouble]:
    world = KubeRayDouble(raw_job(**job), outcomes)
    return world, ApiDouble(world)


def running(world: KubeRayDouble) -> list[str]:
    return [
        name
        for name, raw in world.ray_jobs.items()
        if raw.get("status", {}).get("jobDeploymentStatus") in ("Initializing", "Running")
    ]


async def settle(world: KubeRayDouble, replica: Replica, seconds: float = 400) -> None:
    """Let everything happen that is still to happen, without faults."""
    quiet = 0
    for _ in range(80):
        before = copy.deepcopy((world.job, world.ray_jobs))
        replica.see_all()
        await replica.look()
        world.step()
        world.now += timedelta(seconds=seconds)
        quiet = quiet + 1 if (world.job, world.ray_jobs) == before else 0
        if quiet == 2:
            return
    raise AssertionError("does not settle")


def expected(outcomes: list[str], retries: int) -> tuple[str, int, int]:
    """State, attempts and failed attempts in the end, told by the outcomes alone."""
    for attempt in range(1, retries + 2):
        outcome = outcomes[min(attempt, len(outcomes)) - 1]
        if outcome == "SUCCEEDED":
            return "Complete", attempt, attempt - 1
        if outcome == "2":
            return "Failed", attempt, attempt
    return "Failed", retries + 1, retries + 1


THOROUGH = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
STEPS = ("see job", "see ray jobs", "see all", "look", "look", "look", "kuberay", "kuberay", "time", "restart", "other")
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
    world, api = world_of(outcomes, retries=retries)

    async def play() -> None:
        replicas = [Replica(api, team), Replica(api, team)]
        api.faults = iter(faults)
        for step in steps:
            await act(step, world, replicas)
            assert len(running(world)) <= 1
        api.faults = iter(())
        replicas[0].restart()
        await settle(world, replicas[0])

    asyncio.run(play())

    state, attempts, failed = expected(outcomes, retries)
    assert world.job is not None
    status = world.job["status"]
    assert (status["state"], status["attempt"], status["failedAttempts"]) == (state, attempts, failed)
    assert world.started == [f"job-{number}" for number in range(1, attempts + 1)]
    assert list(world.ray_jobs) == [f"job-{attempts}"]


@THOROUGH
@given(
    outcomes=OUTCOMES,
    retries=st.integers(0, 3),
    steps=st.lists(st.sampled_from((*STEPS, "suspend", "resume", "suspend", "resume")), max_size=80),
    faults=FAULTS,
    born_suspended=st.booleans(),
)
def test_no_attempt_runs_twice_however_often_a_job_is_suspended(
    outcomes: list[str], retries: int, steps: list[str], faults: list[str], born_suspended: bool
):
    world, api = world_of(outcomes, retries=retries, suspend=born_suspended)

    async def play() -> None:
        replicas = [Replica(api, team_view(raw_team())), Replica(api, team_view(raw_team()))]
        api.faults = iter(faults)
        for step in steps:
            await act(step, world, replicas)
            assert len(running(world)) <= 1
        api.faults = iter(())
        world.change(suspend=False)
        replicas[0].restart()
        await settle(world, replicas[0])

    asyncio.run(play())

    assert world.job is not None
    assert world.job["status"]["state"] in ("Complete", "Failed")
    assert len(set(world.started)) == len(world.started)
    numbers = [int(name.removeprefix("job-")) for name in world.started]
    assert numbers == sorted(numbers)
    assert world.job["status"]["attempt"] == numbers[-1]


@THOROUGH
@given(
    # No time passes: after its limit the clean-up is left out.
    steps=st.lists(st.sampled_from((*(step for step in STEPS if step != "time"), "user deletes")), max_size=40),
    faults=FAULTS,
)
def test_a_deleted_job_leaves_nothing(steps: list[str], faults: list[str]):
    team = team_view(raw_team(cleanUp={"template": pod_template()}))
    world, api = world_of(["SUCCEEDED"])

    async def play() -> None:
        replicas = [Replica(api, team), Replica(api, team)]
        api.faults = iter(faults)
        for step in steps:
            await act(step, world, replicas)
        api.faults = iter(())
        delete(world)
        replicas[0].restart()
        await settle(world, replicas[0], seconds=1)

    asyncio.run(play())

    assert world.job is None or not world.job["metadata"].get("finalizers")
    assert not world.ray_jobs or not world.started
    # Where anything was started while the job was there, its part of the store was emptied.
    assert not world.started or api.clean_ups


async def act(step: str, world: KubeRayDouble, replicas: list[Replica]) -> None:
    leader = replicas[0]
    match step:
        case "see job":
            leader.see_job()
        case "see ray jobs":
            leader.see_ray_jobs()
        case "see all":
            leader.see_all()
        case "look":
            await leader.look()
        case "kuberay":
            world.step()
        case "time":
            world.now += timedelta(seconds=100)
        case "restart":
            leader.restart()
        case "other":
            # Another replica takes over; what it knows is as old as its own watches are.
            replicas.reverse()
        case "suspend" | "resume":
            world.change(suspend=step == "suspend")
        case "user deletes":
            delete(world)


def delete(world: KubeRayDouble) -> None:
    if world.job is None:
        return
    if not world.job["metadata"].get("finalizers"):
        world.job = None
        for name in list(world.ray_jobs):
            world.delete(name)
        return
    stamp = world.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    world.write_job(finalizers=world.job["metadata"]["finalizers"])
    world.job["metadata"].setdefault("deletionTimestamp", stamp)


# Single looks


async def first_looks(**job: Any) -> tuple[KubeRayDouble, ApiDouble, Replica]:
    world, api = world_of(["SUCCEEDED"], **job)
    return world, api, Replica(api, team_view(raw_team()))


async def test_starting_a_job_takes_three_writes():
    _, api, replica = await first_looks()

    await replica.look()

    assert api.writes == ["apply RayJob job-1", next(w for w in api.writes if "Event" in w), "apply status"]


async def test_reconciling_again_writes_nothing():
    world, api, replica = await first_looks()
    for _ in range(8):
        replica.see_all()
        await replica.look()
        world.step()
    api.writes.clear()

    replica.restart()
    await replica.look()

    assert api.writes == []


async def test_a_replica_with_a_stale_cache_restarts_no_attempt():
    world, api, leader = await first_looks()
    behind = Replica(api, team_view(raw_team()))
    for suspend in (False, True, False):
        world.change(suspend=suspend)
        leader.see_all()
        await leader.look()
        leader.see_all()
        await leader.look()
    assert list(world.ray_jobs) == ["job-2"]

    await behind.look()

    assert list(world.ray_jobs) == ["job-2"]


async def test_a_refused_rayjob_is_reported_and_retried():
    world, api, replica = await first_looks()
    api.refusal = "exceeded quota: count/rayjobs.ray.io"

    await replica.look()

    assert world.job is not None
    assert world.job["status"]["state"] == "NotAdmitted"
    assert "exceeded quota" in world.job["status"]["conditions"][0]["message"]
    api.refusal = ""
    await replica.look()
    assert list(world.ray_jobs) == ["job-1"]


async def test_a_job_whose_clean_up_is_refused_is_released_at_once():
    world, api, _ = await first_looks()
    replica = Replica(api, team_view(raw_team(cleanUp={"template": pod_template()})))
    await replica.look()
    delete(world)
    replica.see_all()
    await replica.look()
    replica.see_all()
    api.refused = {"Job"}

    await replica.look()

    assert world.job is not None
    assert world.job["metadata"]["finalizers"] == []


async def test_refused_events_do_not_block_reconciliation():
    world, api, replica = await first_looks()
    api.refused = {"Event"}

    await replica.look()

    assert world.job is not None
    assert world.job["status"]["state"] == "Starting"


async def test_a_rayjob_of_another_owner_is_left_alone():
    world, api, replica = await first_looks()
    world.ray_jobs["job-1"] = raw_ray_job(uid="of-somebody-else")

    await replica.look()

    assert world.job is not None
    assert world.job["status"]["conditions"][0]["reason"] == "NameTaken"
    assert "apply RayJob job-1" not in api.writes


async def test_progress_is_written_at_most_every_thirty_seconds(monkeypatch: pytest.MonkeyPatch):
    from turnmill.jobs.status import JobProgress
    from turnmill_operator import reconciler
    from turnmill_operator.views import RunProgress

    clock = [0.0]
    monkeypatch.setattr(reconciler.time, "monotonic", lambda: clock[0])
    world, api, replica = await first_looks()
    for _ in range(2):
        await replica.look()
        world.step()
        replica.see_all()
    writes = []
    for step in range(1, 10):
        api.writes.clear()
        clock[0] += 10
        replica.cache.put_progress(KEY, 1, RunProgress(JobProgress(step=step)))
        await replica.look()
        writes.append(len(api.writes))

    assert writes == [1, 0, 0, 1, 0, 0, 1, 0, 0]


def test_condition_times_have_whole_seconds():
    from turnmill_operator.reconciler import _now

    assert isinstance(_now(), datetime)
    assert _now().microsecond == 0
