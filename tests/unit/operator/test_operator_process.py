"""Watch events, periodic listings and health of the operator's process."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import kopf
import pytest

from support.ray_jobs import NAMESPACE, at, raw_job, raw_pod, raw_ray_job, raw_team, stamp
from turnmill_operator import metrics, operator_process, watches
from turnmill_operator.api import CONFIG_MAPS, JOBS, RAY_JOBS, ApiError, Resource
from turnmill_operator.operator_process import Operator, Settings
from turnmill_operator.views import Disruption, KubeRay, ObjectKey

KEY = ObjectKey(NAMESPACE, "job")
SCHEMA = '{"RayJob": {}, "authOptions": {}}'


class Cluster:
    """An API server that lists objects by resource and name."""

    def __init__(self) -> None:
        self.objects: dict[Resource, dict[str, dict[str, Any]]] = {JOBS: {}, RAY_JOBS: {}, CONFIG_MAPS: {}}
        self.schema: str | None = SCHEMA
        self.reachable = True

    def put(self, resource: Resource, raw: dict[str, Any], version: int) -> dict[str, Any]:
        found = {**raw, "metadata": {**raw["metadata"], "resourceVersion": str(version)}}
        self.objects[resource][raw["metadata"]["name"]] = found
        return found

    async def list(self, resource: Resource, namespace: str | None, **_: Any) -> AsyncIterator[Any]:
        if not self.reachable:
            raise ApiError(0, "unreachable")
        for found in list(self.objects[resource].values()):
            yield found

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Any:
        return self.objects[resource].get(name)

    async def get_text(self, path: str) -> str | None:
        if not self.reachable:
            raise ApiError(0, "unreachable")
        return self.schema


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(operator_process, "GRACE_SECONDS", 0.0)
    return Cluster()


@pytest.fixture
async def operator(cluster: Cluster) -> Operator:
    api: Any = cluster
    found = Operator(Settings((), "n", "me", 0), api)
    found.lease.held.set()
    return found


async def test_a_listing_finds_changes_that_watches_missed(operator: Operator, cluster: Cluster):
    cluster.put(JOBS, raw_job(), 1)
    cluster.put(CONFIG_MAPS, raw_team(), 1)

    await operator._resync()

    assert operator.cache.jobs.keys() == {KEY}
    assert operator.cache.teams.keys() == {NAMESPACE}
    assert operator.cache.kuberay is not None
    assert operator.cache.kuberay.ray_tokens
    assert len(operator.queue) == 1


async def test_deleted_objects_are_removed_from_the_cache(operator: Operator, cluster: Cluster):
    operator.on_job_event(None, cluster.put(JOBS, raw_job(), 1))
    operator.on_ray_job_event(None, cluster.put(RAY_JOBS, raw_ray_job(), 1))
    operator.on_team_event(None, raw_team())
    await operator._resync()
    for objects in cluster.objects.values():
        objects.clear()

    await operator._resync()

    assert (operator.cache.jobs, operator.cache.ray_jobs(), operator.cache.teams) == ({}, (), {})


async def test_a_silent_watch_makes_the_process_unhealthy(operator: Operator, cluster: Cluster):
    before = metrics.MISSED_EVENTS.labels("rayjobs")._value.get()
    await operator._resync()
    assert operator.health_problem() == ""

    for version in (5, 6):
        cluster.put(RAY_JOBS, raw_ray_job(), version)
        await operator._resync()

    assert operator.health_problem() == "a watch does not report changes that listings find"
    assert metrics.MISSED_EVENTS.labels("rayjobs")._value.get() - before == 2
    assert operator.cache.ray_jobs()[0].version == 6
    await operator._resync()
    assert operator.health_problem() == ""


async def test_listings_that_fail_for_long_make_the_process_unhealthy(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
):
    now = operator_process.time.monotonic()
    monkeypatch.setattr(metrics.time, "monotonic", lambda: now + 899)
    assert operator.health_problem() == ""

    monkeypatch.setattr(metrics.time, "monotonic", lambda: now + 901)

    assert operator.health_problem().startswith("no listing has succeeded for 90")


async def test_a_job_that_waits_for_long_makes_the_leader_unhealthy(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
):
    operator.queue.add(KEY)
    monkeypatch.setattr(operator.queue, "oldest_age_seconds", lambda: 301.0)
    assert operator.health_problem() == "a job has waited for 301 s"

    operator.lease.held.clear()

    assert operator.health_problem() == ""


async def test_a_replica_without_the_lease_queues_nothing(operator: Operator):
    operator.lease.held.clear()

    operator.on_job_event("ADDED", raw_job())

    assert operator.cache.jobs.keys() == {KEY}
    assert len(operator.queue) == 0


async def test_events_put_their_job_into_the_queue_once(operator: Operator, cluster: Cluster):
    operator.on_job_event("ADDED", cluster.put(JOBS, raw_job(), 1))
    operator.on_ray_job_event("ADDED", cluster.put(RAY_JOBS, raw_ray_job(), 2))
    assert await operator.queue.get() == KEY
    operator.queue.done(KEY)

    operator.on_job_event("MODIFIED", raw_job())
    operator.on_ray_job_event("MODIFIED", raw_ray_job())

    assert len(operator.queue) == 0
    operator.on_ray_job_event("DELETED", raw_ray_job())
    assert len(operator.queue) == 1


async def test_the_disruption_of_a_pod_is_remembered_with_its_attempt(operator: Operator):
    operator.on_pod_event(raw_pod("job-2-head", attempt=2))
    operator.on_pod_event(raw_pod("job-2-worker", attempt=2, disrupted_at=at(50)))
    operator.on_pod_event(raw_pod("job-2-head", attempt=2, disrupted_at=at(40)))
    operator.on_pod_event(raw_pod("job-1-head", attempt=1, disrupted_at=at(60)))

    assert operator.cache.disruption(KEY, 2) == Disruption(
        at(50), "pod job-2-worker (EvictionByEvictionAPI: Eviction API: evicting)"
    )
    assert operator.cache.disruption(KEY, 3) is None
    operator.on_job_event("DELETED", raw_job())
    assert operator.cache.disruption(KEY, 2) is None


async def test_the_nodes_of_pods_that_died_are_remembered_with_their_attempt(operator: Operator):
    def nodes(attempt: int) -> tuple[str, ...]:
        return operator.cache.failed_nodes(KEY, attempt)

    deleted = raw_pod("job-1-head", attempt=1, phase="Failed")
    deleted["metadata"]["deletionTimestamp"] = stamp(at(5))
    for pod in (
        raw_pod("job-1-head", attempt=1),
        raw_pod("job-1-a", attempt=1, phase="Failed", disrupted_at=at(50)),
        raw_pod("job-1-b", attempt=1, phase="Succeeded"),
        deleted,
    ):
        operator.on_pod_event(pod)
    assert nodes(1) == ()

    for _ in range(2):
        operator.on_pod_event(raw_pod("job-1-worker", attempt=1, phase="Failed"))
    assert nodes(1) == ("node-1",)

    operator.on_pod_event(raw_pod("job-2-worker", attempt=2, phase="Failed"))
    assert (nodes(1), nodes(2)) == ((), ("node-1",))
    operator.on_job_event("DELETED", raw_job())
    assert nodes(2) == ()


async def test_a_change_of_the_team_queues_all_its_jobs(operator: Operator):
    operator.cache.put_job(raw_job("a"))
    operator.cache.put_job(raw_job("b"))

    operator.on_team_event("MODIFIED", raw_team())
    assert len(operator.queue) == 2
    operator.on_team_event("DELETED", raw_team())

    assert operator.cache.teams == {}


async def test_kuberay_installed_later_is_watched_after_a_restart(operator: Operator, cluster: Cluster):
    cluster.schema = None
    await operator._resync()
    assert operator.cache.kuberay is None

    cluster.schema = SCHEMA

    with pytest.raises(SystemExit, match="KubeRay has been installed"):
        await operator._resync()


async def test_a_kuberay_without_tokens_is_noticed_and_so_is_its_upgrade(operator: Operator, cluster: Cluster):
    cluster.schema = '{"RayJob": {}}'

    await operator._resync()

    assert operator.cache.kuberay == KubeRay(ray_tokens=False)

    cluster.schema = SCHEMA
    await operator._resync()

    assert operator.cache.kuberay == KubeRay(ray_tokens=True)


async def test_a_job_that_triggers_a_bug_does_not_block_others(operator: Operator, monkeypatch: pytest.MonkeyPatch):
    seen, both = [], asyncio.Event()

    async def reconcile(key: ObjectKey) -> None:
        seen.append(key)
        if key.name == "bad":
            raise ZeroDivisionError
        both.set()

    monkeypatch.setattr(operator._reconciler, "reconcile", reconcile)
    operator.synced.set()
    for name in ("bad", "good"):
        operator.queue.add(ObjectKey(NAMESPACE, name))
    worker = asyncio.create_task(operator.run_worker())
    async with asyncio.timeout(5):
        await both.wait()
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)

    assert [key.name for key in seen] == ["bad", "good"]


def test_kopf_is_configured_to_write_nothing():
    settings = kopf.OperatorSettings()

    watches.configure(settings)

    assert settings.peering.standalone
    assert not settings.posting.enabled
    assert settings.scanning.disabled


async def test_kopf_has_no_handler_that_needs_a_finalizer(operator: Operator):
    found = watches.build_registry(operator)

    assert len(found._watching._handlers) == 4
    assert [found._changing._handlers, found._spawning._handlers, found._indexing._handlers] == [[], [], []]
