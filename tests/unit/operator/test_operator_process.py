"""What the process does around its workers: events in, listings that find what was lost, and its health."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import kopf
import pytest

from turnmill.testing.ray_jobs import NAMESPACE, raw_job, raw_ray_job, raw_team
from turnmill_operator import metrics, operator_process
from turnmill_operator.api import CONFIG_MAPS, JOBS, RAY_JOBS, ApiError, Resource
from turnmill_operator.operator_process import Operator, Settings, kopf_settings, registry
from turnmill_operator.views import Key

KEY = Key(NAMESPACE, "job")
SCHEMA = '{"RayJob": {}, "authOptions": {}}'


class Cluster:
    """Objects by resource and name, as an API server lists them."""

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

    async def text(self, path: str) -> str | None:
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


async def test_a_listing_finds_what_no_watch_has_told(operator: Operator, cluster: Cluster):
    cluster.put(JOBS, raw_job(), 1)
    cluster.put(CONFIG_MAPS, raw_team(), 1)

    await operator._resync()

    assert operator.cache.jobs.keys() == {KEY}
    assert operator.cache.teams.keys() == {NAMESPACE}
    assert operator.cache.kuberay is not None
    assert operator.cache.kuberay.ray_tokens
    assert len(operator.queue) == 1


async def test_what_is_gone_is_forgotten(operator: Operator, cluster: Cluster):
    operator.job_event(None, cluster.put(JOBS, raw_job(), 1))
    operator.ray_job_event(None, cluster.put(RAY_JOBS, raw_ray_job(), 1))
    operator.team_event(None, raw_team())
    await operator._resync()
    for objects in cluster.objects.values():
        objects.clear()

    await operator._resync()

    assert (operator.cache.jobs, operator.cache.ray_jobs(), operator.cache.teams) == ({}, (), {})


async def test_a_watch_that_tells_nothing_makes_the_process_unhealthy(operator: Operator, cluster: Cluster):
    before = metrics.MISSED_EVENTS.labels("rayjobs")._value.get()
    await operator._resync()
    assert operator.why_unhealthy() == ""

    for version in (5, 6):
        cluster.put(RAY_JOBS, raw_ray_job(), version)
        await operator._resync()

    assert operator.why_unhealthy() == "a watch tells nothing of changes that listings show"
    assert metrics.MISSED_EVENTS.labels("rayjobs")._value.get() - before == 2
    assert operator.cache.ray_jobs()[0].version == 6
    await operator._resync()
    assert operator.why_unhealthy() == ""


async def test_listings_that_fail_for_long_make_the_process_unhealthy(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
):
    now = operator_process.time.monotonic()
    monkeypatch.setattr(metrics.time, "monotonic", lambda: now + 899)
    assert operator.why_unhealthy() == ""

    monkeypatch.setattr(metrics.time, "monotonic", lambda: now + 901)

    assert operator.why_unhealthy().startswith("no listing has succeeded for 90")


async def test_a_job_that_waits_for_long_makes_the_leader_unhealthy(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
):
    operator.queue.add(KEY)
    monkeypatch.setattr(operator.queue, "age", lambda: 301.0)
    assert operator.why_unhealthy() == "a job has waited for 301 s"

    operator.lease.held.clear()

    assert operator.why_unhealthy() == ""


async def test_who_does_not_act_collects_no_work(operator: Operator):
    operator.lease.held.clear()

    operator.job_event("ADDED", raw_job())

    assert operator.cache.jobs.keys() == {KEY}
    assert len(operator.queue) == 0


async def test_events_put_their_job_into_the_queue_once(operator: Operator, cluster: Cluster):
    operator.job_event("ADDED", cluster.put(JOBS, raw_job(), 1))
    operator.ray_job_event("ADDED", cluster.put(RAY_JOBS, raw_ray_job(), 2))
    assert await operator.queue.get() == KEY
    operator.queue.done(KEY)

    operator.job_event("MODIFIED", raw_job())
    operator.ray_job_event("MODIFIED", raw_ray_job())

    assert len(operator.queue) == 0
    operator.ray_job_event("DELETED", raw_ray_job())
    assert len(operator.queue) == 1


async def test_a_change_of_the_team_is_news_to_all_its_jobs(operator: Operator):
    operator.cache.put_job(raw_job("a"))
    operator.cache.put_job(raw_job("b"))

    operator.team_event("MODIFIED", raw_team())
    assert len(operator.queue) == 2
    operator.team_event("DELETED", raw_team())

    assert operator.cache.teams == {}


async def test_kuberay_that_comes_later_is_watched_after_a_restart(operator: Operator, cluster: Cluster):
    cluster.schema = None
    await operator._resync()
    assert operator.cache.kuberay is None

    cluster.schema = SCHEMA

    with pytest.raises(SystemExit, match="KubeRay has been installed"):
        await operator._resync()


async def test_a_job_that_breaks_the_operator_does_not_keep_it_from_others(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
):
    seen, both = [], asyncio.Event()

    async def reconcile(key: Key) -> None:
        seen.append(key)
        if key.name == "bad":
            raise ZeroDivisionError
        both.set()

    monkeypatch.setattr(operator._reconciler, "reconcile", reconcile)
    operator.synced.set()
    for name in ("bad", "good"):
        operator.queue.add(Key(NAMESPACE, name))
    worker = asyncio.create_task(operator.work())
    async with asyncio.timeout(5):
        await both.wait()
    worker.cancel()
    await asyncio.gather(worker, return_exceptions=True)

    assert [key.name for key in seen] == ["bad", "good"]


def test_kopf_writes_nothing():
    settings = kopf.OperatorSettings()

    kopf_settings(settings)

    assert settings.peering.standalone
    assert not settings.posting.enabled
    assert settings.scanning.disabled


async def test_kopf_has_no_handler_that_needs_a_finalizer(operator: Operator):
    found = registry(operator)

    assert len(found._watching._handlers) == 3
    assert [found._changing._handlers, found._spawning._handlers, found._indexing._handlers] == [[], [], []]
