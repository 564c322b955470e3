"""The operator's views, cache, queue, lease, events and progress."""

import asyncio
from typing import Any

import pytest
from pydantic import ValidationError

from support.ray_jobs import NAMESPACE, START, at, raw_job, raw_ray_job
from turnmill.jobs.status import JobProgress, JobStatus
from turnmill_operator.api import ApiError, Resource
from turnmill_operator.cache import Cache
from turnmill_operator.events import build_event, event_for
from turnmill_operator.lease import DURATION_SECONDS, Lease
from turnmill_operator.ray_job_status import failure_of
from turnmill_operator.run_progress import parse_progress
from turnmill_operator.status import DesiredCondition, DesiredStatus, Reason, State, build_status
from turnmill_operator.views import ObjectKey, RunProgress, job_view, ray_job_view, team_view
from turnmill_operator.work_queue import WorkQueue

# Views


async def test_a_key_that_an_overloaded_server_sent_away_does_not_return_before_it_may(
    monkeypatch: pytest.MonkeyPatch,
):
    queue, key, waits = WorkQueue(), ObjectKey("n", "a"), []
    monkeypatch.setattr(queue, "add_after", lambda _, seconds: waits.append(seconds))

    for _ in range(20):
        queue.retry(key, at_least=7.0)
        queue.reset_failures(key)

    assert all(7.0 < seconds < 8.0 for seconds in waits)
    # Not all of them at once.
    assert len(set(waits)) > 1


def test_the_attempt_is_read_from_a_status_of_another_version():
    view = job_view(raw_job(status={"attempt": 3, "failedAttempts": 2, "phase": "Running", "conditions": "none"}))

    assert (view.status.attempt, view.status.failed_attempts) == (3, 2)


def test_an_invalid_job_is_kept_with_its_error():
    view = job_view(raw_job(agent__prompt="cot"))

    assert view.job is None
    assert view.spec_error.startswith("spec.agent.prompt: 'cot' must be compact")


def test_unknown_fields_of_a_newer_crd_are_ignored():
    view = job_view(raw_job(environment__depth=7))

    assert view.spec_error == ""
    assert view.job is not None


def test_an_invalid_team_is_kept_as_its_error():
    assert "has no key team.yaml" in str(team_view({"data": {}}))


def test_a_runs_own_failure_message_is_reported():
    logs = "Job entrypoint command failed with exit code 1, last available logs:\n" + "noise\n" * 500
    status = {"jobStatus": "FAILED", "jobDeploymentStatus": "Failed"}

    failed = failure_of(ray_job_view(raw_ray_job(**status, message=f"{logs}The run failed (stall): no progress.\n")))
    crashed = failure_of(ray_job_view(raw_ray_job(**status, message=f"{logs}Segmentation fault")))

    assert failed is not None
    assert failed.message == "no progress (stall)."
    assert crashed is not None
    assert crashed.message.startswith("Job entrypoint command failed with exit code 1")
    assert crashed.message.endswith("noise Segmentation fault.")
    assert len(crashed.message) < 800


# Cache


def versioned(raw: dict[str, Any], version: int, **metadata: Any) -> dict[str, Any]:
    return {**raw, "metadata": {**raw["metadata"], "resourceVersion": str(version), **metadata}}


def test_older_versions_that_arrive_late_are_ignored():
    cache = Cache()

    accepted = [cache.put_job(versioned(raw_job(), version)) for version in (5, 4, 5, 6)]
    ray_accepted = [cache.put_ray_job(versioned(raw_ray_job(), version)) for version in (5, 4, 5, 6)]

    assert accepted == ray_accepted == [True, False, False, True]


def test_progress_is_stored_by_attempt():
    cache, key = Cache(), ObjectKey(NAMESPACE, "job")
    progress = RunProgress(JobProgress(step=3))

    assert cache.put_progress(key, 1, progress)
    assert not cache.put_progress(key, 1, progress)
    assert cache.progress(key, 1) == progress
    assert cache.progress(key, 2) == RunProgress()


def shared(name: str, created: float, *, suspend: bool = False, state: str | None = None) -> dict[str, Any]:
    raw = raw_job(name, cluster="shared", suspend=suspend, status={"state": state} if state else None)
    return versioned(raw, 1, creationTimestamp=at(created).isoformat(), uid=f"uid-of-{name}")


def blocking_jobs(*jobs: dict[str, Any], running: str | None = None, alone: bool = False) -> dict[str, str]:
    """Return for every job the job that blocks it."""
    cache = Cache()
    for raw in jobs:
        cache.put_job(raw)
    if running:
        cache.put_ray_job(raw_ray_job(job=running, uid=f"uid-of-{running}", shared=not alone, jobStatus="RUNNING"))
    return {view.key.name: cache.blocking_job(view) for view in cache.jobs.values()}


def test_the_oldest_job_runs_first_on_a_shared_cluster():
    assert blocking_jobs(shared("young", 2), shared("old", 1)) == {"young": "old", "old": ""}


def test_a_job_running_on_the_shared_cluster_blocks_older_jobs():
    assert blocking_jobs(shared("old", 1), shared("young", 2), running="young") == {"old": "young", "young": ""}


def test_rayjobs_and_not_specs_decide_which_job_uses_the_shared_cluster():
    moved_away = shared("old", 1)
    moved_away["spec"]["cluster"] = "own"

    assert blocking_jobs(moved_away, shared("young", 2), running="old")["young"] == "old"
    assert blocking_jobs(shared("old", 1), shared("young", 2), running="old", alone=True)["young"] == ""


@pytest.mark.parametrize("other", [{"suspend": True}, {"state": "NotAdmitted"}])
def test_a_job_that_cannot_start_blocks_no_other(other: dict[str, Any]):
    assert blocking_jobs(shared("old", 1, **other), shared("young", 2))["young"] == ""


def test_jobs_are_counted_by_namespace_and_state():
    cache = Cache()
    cache.put_job(raw_job("a", status={"state": "Running"}))
    cache.put_job(raw_job("b", status={"state": "Running"}))

    assert cache.count_by_state() == {(NAMESPACE, "Running"): 2}


# Queue


async def test_a_key_is_queued_once_and_processed_by_one_worker():
    queue, key = WorkQueue(), ObjectKey("n", "a")
    queue.add(key)
    queue.add(key)
    assert await queue.get() == key

    queue.add(key)
    assert len(queue) == 0
    queue.done(key)
    assert len(queue) == 1


async def test_the_earliest_of_several_delays_is_used():
    queue, key = WorkQueue(), ObjectKey("n", "a")
    queue.add_after(key, 0.01)
    queue.add_after(key, 100)

    async with asyncio.timeout(5):
        assert await queue.get() == key
    assert queue.oldest_age_seconds() == 0


async def test_repeated_failures_increase_the_delay(monkeypatch: pytest.MonkeyPatch):
    queue, key, waits = WorkQueue(), ObjectKey("n", "a"), []
    monkeypatch.setattr(queue, "add_after", lambda _, seconds: waits.append(seconds))
    for _ in range(12):
        queue.retry(key)
    queue.reset_failures(key)
    queue.retry(key)

    assert 0.3 < waits[0] < 0.7
    assert waits[3] > 2
    assert 45 <= waits[11] <= 75
    assert 0.3 < waits[12] < 0.7


async def test_a_forgotten_key_is_not_queued_again():
    queue, key = WorkQueue(), ObjectKey("n", "a")
    queue.add_after(key, 0.01)
    queue.forget(key)

    await asyncio.sleep(0.05)

    assert len(queue) == 0


# Lease


class LeaseApi:
    """An API server with one versioned Lease."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.reachable = True

    async def get(self, resource: Resource, namespace: str, name: str) -> Any:
        if not self.reachable:
            raise ApiError(0, "unreachable")
        return self.lease

    async def replace(self, resource: Resource, namespace: str, manifest: Any) -> Any:
        if not self.reachable:
            raise ApiError(0, "unreachable")
        known = self.lease and self.lease["metadata"]["resourceVersion"]
        if manifest["metadata"].get("resourceVersion") != known:
            raise ApiError(409, "conflict")
        self.version += 1
        self.lease = {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": str(self.version)}}
        return self.lease


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock of the lease, which sleeping advances."""
    now = [1000.0]

    async def sleep(seconds: float) -> None:
        now[0] += seconds
        await _yield()

    monkeypatch.setattr("turnmill_operator.lease.time.monotonic", lambda: now[0])
    monkeypatch.setattr("turnmill_operator.lease.asyncio.sleep", sleep)
    return now


_real_sleep = asyncio.sleep


async def _yield() -> None:
    await _real_sleep(0)


async def run_event_loop(number: int = 20) -> None:
    for _ in range(number):
        await _yield()


async def test_one_replica_holds_the_lease_and_releases_it(clock: list[float]):
    api: Any = LeaseApi()
    first, second = Lease(api, "n", "first"), Lease(api, "n", "second")
    holder = asyncio.create_task(first.run())
    await run_event_loop(3)
    assert first.held.is_set()

    waiting = asyncio.create_task(second.run())
    await run_event_loop(6)
    assert not second.held.is_set()

    holder.cancel()
    await asyncio.gather(holder, return_exceptions=True)
    await run_event_loop(6)
    assert second.held.is_set()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


class SimulatedTime(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next thing that is due."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        select = self._selector.select  # type: ignore[attr-defined]

        def advance(timeout: float | None = None) -> Any:
            self.now += timeout or 0.0
            return select(0)

        self._selector.select = advance  # type: ignore[attr-defined]

    def time(self) -> float:
        return self.now


@pytest.mark.parametrize("seconds", [2.0, 4.5])
def test_the_holder_keeps_its_lease_and_releases_it_while_every_request_is_slow(
    monkeypatch: pytest.MonkeyPatch, seconds: float
):
    class SlowApi(LeaseApi):
        async def get(self, *arguments: Any) -> Any:
            await asyncio.sleep(seconds)
            return await super().get(*arguments)

        async def replace(self, *arguments: Any) -> Any:
            await asyncio.sleep(seconds)
            return await super().replace(*arguments)

    async def run() -> list[tuple[bool, bool]]:
        api: Any = SlowApi()
        replicas = [Lease(api, "n", "first"), Lease(api, "n", "second")]
        tasks = [asyncio.create_task(each.run()) for each in replicas]
        await asyncio.sleep(15)
        seen = []
        for _ in range(300):
            await asyncio.sleep(1)
            seen.append((replicas[0].held.is_set(), replicas[1].held.is_set()))
        holder = seen[0].index(True)
        tasks[holder].cancel()
        await asyncio.sleep(20)
        seen.append((replicas[holder].held.is_set(), replicas[1 - holder].held.is_set()))
        tasks[1 - holder].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return seen

    with asyncio.Runner(loop_factory=SimulatedTime) as runner:
        monkeypatch.setattr("turnmill_operator.lease.time.monotonic", runner.get_loop().time)
        *seen, last = runner.run(run())

    assert set(seen) in ({(True, False)}, {(False, True)})
    # A Lease that is not released in time expires by itself.
    assert last == (False, True) or (last == (False, False) and seconds > 3)


async def test_an_expired_lease_is_taken_over(clock: list[float]):
    api: Any = LeaseApi()
    await Lease(api, "n", "dead")._acquire()
    successor = Lease(api, "n", "successor")

    assert not await successor._acquire()
    clock[0] += DURATION_SECONDS
    assert not await successor._acquire()
    clock[0] += 1
    assert await successor._acquire()
    assert api.lease["spec"]["leaseTransitions"] == 1


async def test_a_holder_that_cannot_renew_stops_before_the_lease_expires(clock: list[float]):
    api: Any = LeaseApi()
    lease = Lease(api, "n", "holder")
    task = asyncio.create_task(lease.run())
    await run_event_loop(3)
    assert lease.held.is_set()

    api.reachable = False
    before = clock[0]
    while lease.held.is_set():
        await _yield()

    assert clock[0] - before < DURATION_SECONDS
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_only_one_of_two_concurrent_claims_succeeds():
    api: Any = LeaseApi()
    first, second = Lease(api, "n", "first"), Lease(api, "n", "second")

    async def slow_get(*_: Any) -> None:
        return None

    api.get = slow_get

    assert [await first._acquire(), await second._acquire()] == [True, False]


# Events


def status(state: State, attempt: int = 1, **conditions: DesiredCondition) -> JobStatus:
    kinds: Any = conditions
    return build_status(DesiredStatus(state, kinds, attempt), before=JobStatus(), generation=1, now=START)


def test_applying_an_event_twice_creates_one_object():
    failed = status(State.FAILED, Failed=DesiredCondition(True, Reason.RUN_FAILED, "Attempt 1 failed."))
    event = event_for(status(State.RUNNING), failed)
    assert event is not None

    first, second = (build_event(job_view(raw_job()), event, at(seconds)) for seconds in (0, 60))

    assert first["metadata"] == second["metadata"]
    assert (first["type"], first["reason"], first["message"]) == ("Warning", "RunFailed", "Attempt 1 failed.")
    assert event_for(failed, failed) is None


def test_progress_creates_no_event():
    running = status(State.RUNNING)

    assert event_for(running, running.model_copy(update={"progress": JobProgress(step=1)})) is None


def test_a_new_reason_for_not_starting_creates_a_new_event():
    no_team = status(State.NOT_ADMITTED, Admitted=DesiredCondition(False, Reason.NO_TEAM, "Install it."))
    too_many = status(State.NOT_ADMITTED, Admitted=DesiredCondition(False, Reason.TOO_MANY_NODES, "Ask for fewer."))

    event = event_for(no_team, too_many)

    assert event is not None
    assert event.reason == "TooManyNodes"


def test_the_start_of_an_attempt_creates_an_event():
    event = event_for(JobStatus(), status(State.STARTING))

    assert event is not None
    assert (event.reason, event.warning) == ("AttemptStarted", False)


# Progress of runs


RUN = "/runs/team-a/job-01234567"


def test_progress_is_parsed_to_known_fields_with_four_digits():
    answer = {"step": 3, "rewardMean": 0.123456789, "phase": "rollout", "success": None, "more": [1]}

    assert parse_progress(answer, RUN, 2) == JobProgress(step=3, reward_mean=0.1235)
    assert parse_progress(answer | {"run": RUN, "attempt": 2}, RUN, 2) == JobProgress(step=3, reward_mean=0.1235)


@pytest.mark.parametrize("other", [{"run": "/runs/team-b/job-89abcdef", "attempt": 2}, {"run": RUN, "attempt": 1}])
def test_progress_of_another_attempt_is_refused(other: dict[str, Any]):
    with pytest.raises(ValueError, match=rf"The progress is of attempt {other['attempt']} of {other['run']}\."):
        parse_progress({"step": 3} | other, RUN, 2)


@pytest.mark.parametrize("answer", [[], "x", {"step": "3"}, {"step": -1}, {"rewardMean": "high"}])
def test_invalid_progress_is_refused(answer: Any):
    with pytest.raises((ValueError, ValidationError)):
        parse_progress(answer, RUN, 2)
