"""The operator's process: watches fill a cache, workers act while the Lease is held, listings find missed changes."""

import asyncio
import logging
import random
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import aiohttp

from turnmill.core.errors import SettingsError
from turnmill.jobs.team import CONFIG_MAP, TeamSettings
from turnmill_operator import metrics, run_progress
from turnmill_operator.api import CONFIG_MAPS, JOBS, RAY_JOBS, ApiClient, ApiError, Resource
from turnmill_operator.cache import Cache
from turnmill_operator.gangs import DEFAULT_TIMEOUT, Gangs
from turnmill_operator.lease import Lease
from turnmill_operator.pod_rules import DEFAULT_RULES, PodRules
from turnmill_operator.reconciler import Reconciler
from turnmill_operator.run_pods import disruption_of, failed_node
from turnmill_operator.views import (
    ATTEMPT_LABEL,
    JOB_LABEL,
    KubeRay,
    ObjectKey,
    RawObject,
    key_of,
    ray_job_view,
    team_view,
)
from turnmill_operator.work_queue import WorkQueue

WORKERS = 8
RESYNC_SECONDS, RESYNC_RETRY_SECONDS, GRACE_SECONDS = 300.0, 10.0, 5.0
QUEUE_LIMIT_SECONDS, LIST_LIMIT_SECONDS = 300.0, 3 * RESYNC_SECONDS
DEAD_WATCH_RESYNCS = 2
KUBERAY_SECONDS = 3600.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the operator's process."""

    namespaces: tuple[str, ...]
    """Namespaces to watch; empty for all."""
    own_namespace: str
    identity: str
    port: int
    pod_rules: PodRules = DEFAULT_RULES
    """What pod templates of teams may ask for."""
    gang_timeout: timedelta = DEFAULT_TIMEOUT
    """Time for which attempts may block each other, each with a part of its devices; 0: forever."""


@dataclass
class Operator:
    """The tasks of the process and the state they share."""

    settings: Settings
    api: ApiClient
    cache: Cache = field(default_factory=Cache)
    queue: WorkQueue = field(default_factory=WorkQueue)

    def __post_init__(self) -> None:
        self.lease = Lease(self.api, self.settings.own_namespace, self.settings.identity)
        self.synced = asyncio.Event()
        self._reconciler = Reconciler(self.api, self.cache, self.queue, gangs=Gangs(self.settings.gang_timeout))
        self._gauges = metrics.JobGauges()
        self._last_list = metrics.AgeGauge(metrics.LIST_AGE)
        self._last_event = metrics.AgeGauge(metrics.EVENT_AGE)
        self._resyncs_with_misses = 0
        self._kuberay_was_found: bool | None = None
        self._kuberay_checked_at = -KUBERAY_SECONDS
        metrics.QUEUE_LENGTH.set_function(lambda: len(self.queue))
        metrics.QUEUE_AGE.set_function(self.queue.oldest_age_seconds)
        metrics.initialize_series()

    # Events from watches

    def on_job_event(self, kind: str | None, raw: RawObject) -> None:
        """Handle a job that was created, changed or deleted."""
        self._last_event.reset()
        key = key_of(raw)
        if kind == "DELETED":
            self.cache.drop_job(key)
        elif not self.cache.put_job(raw):
            return
        self._add(key)

    def on_ray_job_event(self, kind: str | None, raw: RawObject) -> None:
        """Handle a RayJob of ours that was created, changed or deleted."""
        self._last_event.reset()
        view = ray_job_view(raw)
        key = ObjectKey(view.namespace, view.job)
        if kind == "DELETED":
            self.cache.drop_ray_job(key, view.name)
        elif not self.cache.put_ray_job(raw):
            return
        self._add(key)

    def on_pod_event(self, raw: RawObject) -> None:
        """Handle a change of a run's pod, which matters only if it is being disrupted or has died."""
        self._last_event.reset()
        labels = raw["metadata"]["labels"]
        key, attempt = ObjectKey(raw["metadata"]["namespace"], labels[JOB_LABEL]), int(labels[ATTEMPT_LABEL])
        if (found := disruption_of(raw)) is not None:
            self.cache.put_disruption(key, attempt, found)
        if (node := failed_node(raw)) is not None:
            self.cache.put_failed_node(key, attempt, node)

    def on_team_event(self, kind: str | None, raw: RawObject) -> None:
        """Handle team settings that were created, changed or deleted."""
        self._last_event.reset()
        namespace = raw["metadata"]["namespace"]
        if kind == "DELETED":
            self.cache.teams.pop(namespace, None)
        else:
            self.cache.teams[namespace] = team_view(raw, self.settings.pod_rules)
        self.requeue_all(namespace)

    def requeue_all(self, namespace: str | None = None) -> None:
        """Queue every job, of one namespace or of all."""
        for key in list(self.cache.jobs):
            if namespace in (None, key.namespace):
                self._add(key)

    def _add(self, key: ObjectKey) -> None:
        # A replica that does not act queues nothing: on acquiring the Lease it queues every job.
        if self.lease.held.is_set():
            self.queue.add(key)

    # Tasks

    async def run_worker(self) -> None:
        """Reconcile jobs from the queue while the Lease is held."""
        while True:
            await self.lease.held.wait()
            await self.synced.wait()
            key = await self.queue.get()
            try:
                # The Lease may have been lost while the queue was empty.
                if self.lease.held.is_set():
                    await self._reconcile(key)
            finally:
                self.queue.done(key)

    async def _reconcile(self, key: ObjectKey) -> None:
        outcome = "failed"
        try:
            with metrics.RECONCILE_SECONDS.time():
                await self._reconciler.reconcile(key)
            outcome = "done"
            self.queue.reset_failures(key)
        except ApiError as error:
            metrics.ERRORS.labels(error.reason).inc()
            log.warning(
                "Reconciliation failed", extra={"namespace": key.namespace, "job": key.name, "error": str(error)}
            )
            self.queue.retry(key, at_least=error.retry_after)
        except Exception:
            # A job that triggers a bug must not keep the operator from other jobs.
            metrics.ERRORS.labels("other").inc()
            log.exception("Reconciliation crashed", extra={"namespace": key.namespace, "job": key.name})
            self.queue.retry(key)
        metrics.RECONCILES.labels(outcome).inc()

    async def run_resync(self) -> None:
        """List everything periodically, and on acquiring the Lease, to find changes that watches have missed."""
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
                pause = max(RESYNC_RETRY_SECONDS, error.retry_after)
            until = time.monotonic() + pause
            while time.monotonic() < until and self.lease.held.is_set() == led:
                self._gauges.update(self.cache.count_by_state() if led else {})
                await asyncio.sleep(1.0)

    async def _resync(self) -> None:
        await self._detect_kuberay()
        missed = 0
        for namespace in self.settings.namespaces or (None,):
            missed += await self._resync_resource(JOBS, namespace)
            if self.cache.kuberay is not None:
                missed += await self._resync_resource(RAY_JOBS, namespace)
            await self._list_teams(namespace)
        self._resyncs_with_misses = self._resyncs_with_misses + 1 if missed and self.synced.is_set() else 0
        self._last_list.reset()
        self.synced.set()
        self.requeue_all()

    async def _resync_resource(self, resource: Resource, namespace: str | None) -> int:
        """Update the cache from a listing; return the number of changes that no watch has reported in time."""
        labels = JOB_LABEL if resource is RAY_JOBS else ""
        if not self.synced.is_set():
            async for item in self.api.list(resource, namespace, labels=labels):
                self._put(resource, item)
            return 0
        listed: dict[ObjectKey, RawObject] = {}
        known = self._versions(resource)
        async for item in self.api.list(resource, namespace, labels=labels, metadata_only=True):
            listed[key_of(item)] = item
        behind = {key for key, item in listed.items() if known.get(key, -1) < int(item["metadata"]["resourceVersion"])}
        gone = {key for key in known if key not in listed and namespace in (None, key.namespace)}
        if not behind and not gone:
            return 0
        # A working watch reports a recent change within moments.
        await asyncio.sleep(GRACE_SECONDS)
        now_known = self._versions(resource)
        behind = {k for k in behind if now_known.get(k, -1) < int(listed[k]["metadata"]["resourceVersion"])}
        gone &= now_known.keys()
        for key in behind | gone:
            await self._refresh(resource, key)
        metrics.MISSED_EVENTS.labels(resource.plural).inc(len(behind | gone))
        return len(behind | gone)

    def _put(self, resource: Resource, raw: RawObject) -> None:
        if resource is JOBS:
            self.cache.put_job(raw)
        else:
            self.cache.put_ray_job(raw)

    def _versions(self, resource: Resource) -> dict[ObjectKey, int]:
        if resource is JOBS:
            return {key: view.version for key, view in self.cache.jobs.items()}
        return {ObjectKey(view.namespace, view.name): view.version for view in self.cache.ray_jobs()}

    async def _refresh(self, resource: Resource, key: ObjectKey) -> None:
        raw = await self.api.get(resource, key.namespace, key.name)
        if raw is not None:
            self._put(resource, raw)
        elif resource is JOBS:
            self.cache.drop_job(key)
        else:
            for view in self.cache.ray_jobs():
                if (view.namespace, view.name) == key:
                    self.cache.drop_ray_job(ObjectKey(view.namespace, view.job), view.name)

    async def _list_teams(self, namespace: str | None) -> None:
        found: dict[str, TeamSettings | SettingsError] = {}
        async for raw in self.api.list(CONFIG_MAPS, namespace, fields=f"metadata.name={CONFIG_MAP}"):
            found[raw["metadata"]["namespace"]] = team_view(raw, self.settings.pod_rules)
        for known in list(self.cache.teams):
            if known not in found and namespace in (None, known):
                del self.cache.teams[known]
        self.cache.teams |= found

    async def _detect_kuberay(self) -> None:
        """Detect the capabilities of the installed KubeRay by its OpenAPI schema, which is large and rarely changes."""
        usable = self.cache.kuberay is not None and self.cache.kuberay.ray_tokens
        if usable and time.monotonic() - self._kuberay_checked_at < KUBERAY_SECONDS:
            return
        schema = await self.api.get_text(f"/openapi/v3/apis/{RAY_JOBS.group_version}")
        self._kuberay_checked_at = time.monotonic()
        found = None if schema is None or '"RayJob"' not in schema else KubeRay(ray_tokens='"authOptions"' in schema)
        if found is not None and self._kuberay_was_found is False:
            # kopf looks up kinds once, when it starts.
            raise SystemExit("KubeRay has been installed: restarting to watch its RayJobs.")
        self._kuberay_was_found = found is not None
        self.cache.kuberay = found

    async def poll_progress(self) -> None:
        """Poll the progress of running runs while the Lease is held."""
        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            for silent in (False, True):
                group.create_task(self._poll_progress(session, silent=silent))

    async def _poll_progress(self, session: aiohttp.ClientSession, *, silent: bool) -> None:
        while True:
            await self.lease.held.wait()
            await run_progress.poll_runs(session, self.cache, self.queue, datetime.now(UTC), silent=silent)
            await asyncio.sleep(run_progress.POLL_SECONDS)

    # Health

    def health_problem(self) -> str:
        """Return why this process should be restarted; empty if it is healthy."""
        if self._last_list.seconds() > LIST_LIMIT_SECONDS:
            return f"no listing has succeeded for {self._last_list.seconds():.0f} s"
        if self.lease.held.is_set() and self.queue.oldest_age_seconds() > QUEUE_LIMIT_SECONDS:
            return f"a job has waited for {self.queue.oldest_age_seconds():.0f} s"
        if self._resyncs_with_misses >= DEAD_WATCH_RESYNCS:
            return "a watch does not report changes that listings find"
        return ""
