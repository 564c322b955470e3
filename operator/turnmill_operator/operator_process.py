"""The operator's process: watches fill a cache, workers act while a Lease is held, listings find what was lost."""

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import aiohttp
import kopf

from turnmill.jobs.team import CONFIG_MAP
from turnmill_operator import metrics, run_progress
from turnmill_operator.api import CONFIG_MAPS, JOBS, RAY_JOBS, Api, ApiError, Resource
from turnmill_operator.cache import Cache
from turnmill_operator.lease import Lease
from turnmill_operator.reconciler import Reconciler
from turnmill_operator.views import (
    JOB_LABEL,
    Key,
    KubeRay,
    Raw,
    key_of,
    ray_job_view,
    team_view,
)
from turnmill_operator.work_queue import WorkQueue

WORKERS = 8
RESYNC_SECONDS, RESYNC_RETRY_SECONDS, GRACE_SECONDS = 300.0, 10.0, 5.0
WATCH_SECONDS = 600
QUEUE_LIMIT_SECONDS, LIST_LIMIT_SECONDS = 300.0, 3 * RESYNC_SECONDS
DEAD_WATCH_RESYNCS = 2
KUBERAY_SECONDS = 3600.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the operator works, and as whom."""

    namespaces: tuple[str, ...]
    """Namespaces whose jobs are run; none means all."""
    own_namespace: str
    identity: str
    port: int


@dataclass
class Operator:
    """All parts of the process and what they share."""

    settings: Settings
    api: Api
    cache: Cache = field(default_factory=Cache)
    queue: WorkQueue = field(default_factory=WorkQueue)

    def __post_init__(self) -> None:
        self.lease = Lease(self.api, self.settings.own_namespace, self.settings.identity)
        self.synced = asyncio.Event()
        self._reconciler = Reconciler(self.api, self.cache, self.queue)
        self._counts = metrics.JobCounts()
        self._last_list = metrics.Age(metrics.LIST_AGE)
        self._last_event = metrics.Age(metrics.EVENT_AGE)
        self._resyncs_with_misses = 0
        self._served_ray_jobs: bool | None = None
        self._looked_for_kuberay = -KUBERAY_SECONDS
        metrics.QUEUE_LENGTH.set_function(lambda: len(self.queue))
        metrics.QUEUE_AGE.set_function(self.queue.age)
        metrics.start_at_zero()

    # What watches tell

    def job_event(self, kind: str | None, raw: Raw) -> None:
        """A job was made, changed or deleted."""
        self._last_event.touch()
        key = key_of(raw)
        if kind == "DELETED":
            self.cache.drop_job(key)
        elif not self.cache.put_job(raw):
            return
        self._add(key)

    def ray_job_event(self, kind: str | None, raw: Raw) -> None:
        """A RayJob of ours was made, changed or deleted."""
        self._last_event.touch()
        view = ray_job_view(raw)
        key = Key(view.namespace, view.job)
        if kind == "DELETED":
            self.cache.drop_ray_job(key, view.name)
        elif not self.cache.put_ray_job(raw):
            return
        self._add(key)

    def team_event(self, kind: str | None, raw: Raw) -> None:
        """A team's settings were made, changed or deleted."""
        self._last_event.touch()
        namespace = raw["metadata"]["namespace"]
        if kind == "DELETED":
            self.cache.teams.pop(namespace, None)
        else:
            self.cache.teams[namespace] = team_view(raw)
        self.add_all(namespace)

    def add_all(self, namespace: str | None = None) -> None:
        """Look at every job again."""
        for key in list(self.cache.jobs):
            if namespace in (None, key.namespace):
                self._add(key)

    def _add(self, key: Key) -> None:
        # Who does not act collects no work: on taking the Lease everything is looked at.
        if self.lease.held.is_set():
            self.queue.add(key)

    # Tasks

    async def work(self) -> None:
        """Reconcile what the queue gives, while the Lease is held."""
        while True:
            await self.lease.held.wait()
            await self.synced.wait()
            key = await self.queue.get()
            try:
                # The Lease may have gone while the queue was empty.
                if self.lease.held.is_set():
                    await self._reconcile(key)
            finally:
                self.queue.done(key)

    async def _reconcile(self, key: Key) -> None:
        outcome = "failed"
        try:
            with metrics.RECONCILE_SECONDS.time():
                await self._reconciler.reconcile(key)
            outcome = "done"
            self.queue.succeeded(key)
        except ApiError as error:
            metrics.ERRORS.labels(error.reason).inc()
            log.warning("Job put off", extra={"namespace": key.namespace, "job": key.name, "error": str(error)})
            self.queue.add_failed(key)
        except Exception:
            # One job that breaks the operator must not keep it from the others.
            metrics.ERRORS.labels("other").inc()
            log.exception("Job cannot be looked at", extra={"namespace": key.namespace, "job": key.name})
            self.queue.add_failed(key)
        metrics.RECONCILES.labels(outcome).inc()

    async def keep_in_sync(self) -> None:
        """List everything now and then, and on taking the Lease: what watches have lost is found."""
        led = False
        while True:
            if self.lease.held.is_set() != led:
                led = not led
                self.queue.clear()
            pause = RESYNC_SECONDS * random.uniform(0.9, 1.1)
            try:
                await self._resync()
            except ApiError as error:
                log.warning("Listing failed", extra={"error": str(error)})
                pause = RESYNC_RETRY_SECONDS
            until = time.monotonic() + pause
            while time.monotonic() < until and self.lease.held.is_set() == led:
                self._counts.show(self.cache.states() if led else {})
                await asyncio.sleep(1.0)

    async def _resync(self) -> None:
        await self._find_kuberay()
        missed = 0
        for namespace in self.settings.namespaces or (None,):
            missed += await self._catch_up(JOBS, namespace)
            if self.cache.kuberay is not None:
                missed += await self._catch_up(RAY_JOBS, namespace)
            await self._list_teams(namespace)
        self._resyncs_with_misses = self._resyncs_with_misses + 1 if missed and self.synced.is_set() else 0
        self._last_list.touch()
        self.synced.set()
        self.add_all()

    async def _catch_up(self, resource: Resource, namespace: str | None) -> int:
        """Bring the cache to what a listing shows; tells how many changes no watch has told of in time."""
        labels = JOB_LABEL if resource is RAY_JOBS else ""
        if not self.synced.is_set():
            async for item in self.api.list(resource, namespace, labels=labels):
                self._put(resource, item)
            return 0
        listed: dict[Key, Raw] = {}
        known = self._versions(resource)
        async for item in self.api.list(resource, namespace, labels=labels, metadata_only=True):
            listed[key_of(item)] = item
        behind = {key for key, item in listed.items() if known.get(key, -1) < int(item["metadata"]["resourceVersion"])}
        gone = {key for key in known if key not in listed and namespace in (None, key.namespace)}
        if not behind and not gone:
            return 0
        # A watch that works tells of what was just written within moments.
        await asyncio.sleep(GRACE_SECONDS)
        now_known = self._versions(resource)
        behind = {k for k in behind if now_known.get(k, -1) < int(listed[k]["metadata"]["resourceVersion"])}
        gone &= now_known.keys()
        for key in behind | gone:
            await self._look_up(resource, key)
        metrics.MISSED_EVENTS.labels(resource.plural).inc(len(behind | gone))
        return len(behind | gone)

    def _put(self, resource: Resource, raw: Raw) -> None:
        if resource is JOBS:
            self.cache.put_job(raw)
        else:
            self.cache.put_ray_job(raw)

    def _versions(self, resource: Resource) -> dict[Key, int]:
        if resource is JOBS:
            return {key: view.version for key, view in self.cache.jobs.items()}
        return {Key(view.namespace, view.name): view.version for view in self.cache.ray_jobs()}

    async def _look_up(self, resource: Resource, key: Key) -> None:
        raw = await self.api.get(resource, key.namespace, key.name)
        if raw is not None:
            self._put(resource, raw)
        elif resource is JOBS:
            self.cache.drop_job(key)
        else:
            for view in self.cache.ray_jobs():
                if (view.namespace, view.name) == key:
                    self.cache.drop_ray_job(Key(view.namespace, view.job), view.name)

    async def _list_teams(self, namespace: str | None) -> None:
        found: dict[str, Any] = {}
        async for raw in self.api.list(CONFIG_MAPS, namespace, fields=f"metadata.name={CONFIG_MAP}"):
            found[raw["metadata"]["namespace"]] = team_view(raw)
        for known in list(self.cache.teams):
            if known not in found and namespace in (None, known):
                del self.cache.teams[known]
        self.cache.teams |= found

    async def _find_kuberay(self) -> None:
        """Learn what the installed KubeRay can do; the document that tells is large, and seldom another."""
        if self.cache.kuberay is not None and time.monotonic() - self._looked_for_kuberay < KUBERAY_SECONDS:
            return
        schema = await self.api.text(f"/openapi/v3/apis/{RAY_JOBS.group_version}")
        self._looked_for_kuberay = time.monotonic()
        found = None if schema is None or '"RayJob"' not in schema else KubeRay(ray_tokens='"authOptions"' in schema)
        if found is not None and self._served_ray_jobs is False:
            # kopf looks for kinds once, when it starts.
            raise SystemExit("KubeRay has been installed: starting again to watch its RayJobs.")
        self._served_ray_jobs = found is not None
        self.cache.kuberay = found

    async def ask_runs(self) -> None:
        """Read the progress of running runs, while the Lease is held."""
        async with aiohttp.ClientSession() as session:
            while True:
                await self.lease.held.wait()
                await run_progress.ask_all(session, self.cache, self.queue, datetime.now(UTC))
                await asyncio.sleep(run_progress.EVERY_SECONDS)

    # Health

    def why_unhealthy(self) -> str:
        """Why this process should be started anew; empty where it makes progress."""
        if self._last_list.seconds() > LIST_LIMIT_SECONDS:
            return f"no listing has succeeded for {self._last_list.seconds():.0f} s"
        if self.lease.held.is_set() and self.queue.age() > QUEUE_LIMIT_SECONDS:
            return f"a job has waited for {self.queue.age():.0f} s"
        if self._resyncs_with_misses >= DEAD_WATCH_RESYNCS:
            return "a watch tells nothing of changes that listings show"
        return ""


class NoDiffs(kopf.DiffBaseStorage):
    """Spares kopf a copy of every object for differences that no handler asks for."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        """Nothing to compare."""
        return kopf.BodyEssence({})

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        """Nothing was kept."""
        return None

    def store(self, **_: Any) -> None:
        """Nothing is kept."""


def kopf_settings(settings: kopf.OperatorSettings) -> None:
    """kopf as a shell: it watches, and writes nothing anywhere."""
    settings.peering.standalone = True
    settings.posting.enabled = False
    # Only the handlers' own cache says what changed.
    settings.persistence.diffbase_storage = NoDiffs()
    # Kinds are looked up at the start: what is served later is noticed by the listings.
    settings.scanning.disabled = True
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 10
    settings.watching.server_timeout = WATCH_SECONDS
    settings.watching.chunk_size = 100
    settings.watching.label_selectors["rayjobs"] = JOB_LABEL
    settings.watching.field_selectors["configmaps"] = f"metadata.name={CONFIG_MAP}"


def registry(operator: Operator) -> kopf.OperatorRegistry:
    """Handlers that put what watches tell into the cache and the queue."""
    found = kopf.OperatorRegistry()

    @kopf.on.startup(registry=found)
    def _settings(settings: kopf.OperatorSettings, **_: Any) -> None:
        kopf_settings(settings)

    @kopf.on.login(registry=found)
    def _login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)

    @kopf.on.event(*_selector(JOBS), registry=found)
    async def _job(event: kopf.RawEvent, **_: Any) -> None:
        operator.job_event(event["type"], event["object"])

    @kopf.on.event(*_selector(RAY_JOBS), registry=found)
    async def _ray_job(event: kopf.RawEvent, **_: Any) -> None:
        operator.ray_job_event(event["type"], event["object"])

    @kopf.on.event("", "v1", CONFIG_MAPS.plural, registry=found)
    async def _team(event: kopf.RawEvent, **_: Any) -> None:
        operator.team_event(event["type"], event["object"])

    return found


def _selector(resource: Resource) -> Sequence[str]:
    group, version = resource.group_version.split("/")
    return group, version, resource.plural
