"""Reconciliation of one job: observe it, compute the desired state, and execute the plan."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from turnmill.jobs.status import JobStatus
from turnmill_operator import metrics
from turnmill_operator.api import BATCH_JOBS, JOBS, RAY_JOBS, ApiClient, ApiError
from turnmill_operator.cache import Cache
from turnmill_operator.desired import desired
from turnmill_operator.events import build_event, event_for
from turnmill_operator.gangs import Gangs
from turnmill_operator.plan import Plan, last_attempt, owned_ray_jobs
from turnmill_operator.resources import EVENT, RAY_JOB, Manifest, clean_up_name, ray_job_name
from turnmill_operator.status import State, finished_at
from turnmill_operator.views import (
    ATTEMPT_LABEL,
    FINALIZER,
    JOB_LABEL,
    CleanUpView,
    JobView,
    ObjectKey,
    Observed,
    RawObject,
    RayJobView,
    clean_up_view,
    job_view,
    ray_job_view,
    version_of,
)
from turnmill_operator.waiting import WaitReasons
from turnmill_operator.work_queue import WorkQueue

PROGRESS_WRITE_SECONDS = 30.0
REFUSED_CODES = frozenset({400, 403, 422})

log = logging.getLogger(__name__)


def _now() -> datetime:
    """Return the time in whole seconds, as conditions have it."""
    return datetime.now(UTC).replace(microsecond=0)


class Reconciler:
    """Reconciles the jobs whose keys the work queue yields."""

    def __init__(
        self,
        api: ApiClient,
        cache: Cache,
        queue: WorkQueue,
        clock: Callable[[], datetime] = _now,
        gangs: Gangs | None = None,
    ) -> None:
        self._api = api
        self._cache = cache
        self._queue = queue
        self._now = clock
        self._progress_written: dict[ObjectKey, float] = {}
        self._wait_reasons = WaitReasons(api, queue, gangs)
        self._shared_cluster_locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def reconcile(self, key: ObjectKey) -> None:
        """Reconcile one job. Idempotent."""
        view = self._cache.jobs.get(key)
        if view is None:
            self._forget(key)
        elif view.asks_for_shared_cluster:
            # Jobs of a team are compared with each other: one at a time.
            async with self._shared_cluster_locks[key.namespace]:
                # It may have changed while another was reconciled.
                view = self._cache.jobs.get(key, view)
                await self._reconcile_view(view)
            if finished_at(view.status) is None:
                return
            self._requeue_waiting_jobs(key.namespace)
        else:
            await self._reconcile_view(view)

    async def _reconcile_view(self, view: JobView) -> None:
        observed = await self._observe(view)
        try:
            await self._execute(view, desired(view, observed, self._now()))
        except _ApplyRefusedError as refused:
            await self._execute(view, desired(view, refused.add_to(observed), self._now()))
        except ApiError:
            if view.key in self._cache.jobs:
                raise
            # The job was deleted meanwhile.

    async def _observe(self, view: JobView) -> Observed:
        key, cache = view.key, self._cache
        observed = Observed(team=cache.teams.get(key.namespace), kuberay=cache.kuberay, ray_jobs=cache.ray_jobs(key))
        observed = replace(observed, ray_jobs=await self._with_missed_ray_jobs(view, observed))
        if view.deleted_at is not None and view.has_finalizer:
            self._wait_reasons.forget(key)
            found = await self._api.get(BATCH_JOBS, key.namespace, clean_up_name(key.name))
            return replace(observed, clean_up=clean_up_view(found) if found else None)
        observed = await self._wait_reasons.add_to(observed, view, self._now())
        return replace(
            observed,
            progress=cache.progress(key, last_attempt(view, observed)),
            disruption=cache.disruption(key, last_attempt(view, observed)),
            failed_nodes=cache.failed_nodes(key, last_attempt(view, observed)),
            blocked_by=cache.blocking_job(view) if view.asks_for_shared_cluster else "",
        )

    async def _with_missed_ray_jobs(self, view: JobView, observed: Observed) -> tuple[RayJobView, ...]:
        """Return the job's RayJobs; one that no watch has reported is fetched before its absence has consequences."""
        attempt = last_attempt(view, observed)
        known = {found.name: found for found in observed.ray_jobs}
        if view.is_managed:
            # By its label, as a queue may have kept the RayJob of an earlier attempt for the last one.
            if attempt not in {0, *(found.attempt for found in known.values())} and _absence_matters(
                view, observed, attempt
            ):
                labels = f"{JOB_LABEL}={view.key.name},{ATTEMPT_LABEL}={attempt}"
                async for listed in self._api.list(RAY_JOBS, view.key.namespace, labels=labels):
                    known[listed["metadata"]["name"]] = ray_job_view(listed)
            # By its name, which anything may have taken.
            name = ray_job_name(view.key.name, attempt + 1)
            if name not in known and _absence_matters(view, observed, attempt + 1):
                raw = await self._api.get(RAY_JOBS, view.key.namespace, name)
                if raw is not None:
                    known[name] = ray_job_view(raw)
        return tuple(known.values())

    async def _execute(self, view: JobView, plan: Plan) -> None:
        key = view.key
        if plan.add_finalizer:
            view = await self._apply_job(view, finalizers=[FINALIZER])
        elif any(manifest["kind"] == RAY_JOB for manifest in plan.apply):
            await self._require_unchanged(view)
        for manifest in plan.apply:
            await self._apply(manifest)
        if plan.status is not None:
            await self._write_status(view, plan.status)
        for ray_job in plan.delete:
            # Foreground deletion: once the RayJob is gone its pods are, too, and nothing writes to the store any more.
            await self._api.delete(RAY_JOBS, key.namespace, ray_job.name, uid=ray_job.uid, policy="Foreground")
        if plan.remove_finalizer:
            await self._apply_job(view, finalizers=[])
        if plan.delete_job:
            # Not if it has changed since it was read: its time to live may have been raised.
            await self._api.delete(JOBS, key.namespace, key.name, uid=view.uid, version=view.version)
        if plan.requeue_at is not None:
            self._queue.add_after(key, (plan.requeue_at - self._now()).total_seconds() + 0.05)

    async def _apply(self, manifest: Manifest) -> None:
        kind = manifest["kind"]
        try:
            raw = await self._api.apply(manifest)
        except ApiError as error:
            if error.code not in REFUSED_CODES:
                raise
            if kind == EVENT:
                # The status says the same.
                log.warning("Event refused", extra={"error": str(error)})
                return
            raise _ApplyRefusedError(kind, error.message) from error
        if kind == RAY_JOB:
            self._cache.put_ray_job(raw)

    async def _write_status(self, view: JobView, status: JobStatus) -> None:
        if _differs_only_in_progress(view.status, status) and (wait := self._progress_wait(view.key)) > 0:
            self._queue.add_after(view.key, wait)
            return
        if (event := event_for(view.status, status)) is not None:
            log.info(
                "Job changed",
                extra={
                    "namespace": view.key.namespace,
                    "job": view.key.name,
                    "state": status.state,
                    "reason": event.reason,
                },
            )
            await self._apply(build_event(view, event, self._now()))
        await self._apply_job(view, status=status.model_dump(mode="json", by_alias=True, exclude_none=True))
        self._progress_written[view.key] = time.monotonic()
        _count_ended_attempts(view, status)

    async def _apply_job(self, view: JobView, **fields: object) -> JobView:
        """Apply a part of the job, provided that it has not changed since it was read."""
        try:
            raw = await self._api.apply_job(view.key, view.uid, view.version, **fields)
        except ApiError as error:
            if error.code in (404, 409):
                await self._refresh(view.key)
            raise
        self._cache.put_job(raw)
        return job_view(raw, view)

    async def _require_unchanged(self, view: JobView) -> None:
        """Raise a conflict if the job has changed since it was read: no attempt may start from a stale view."""
        raw = await self._refresh(view.key)
        if raw is None or version_of(raw) != view.version:
            raise ApiError(409, "The job has changed since it was read.")

    async def _refresh(self, key: ObjectKey) -> RawObject | None:
        """Fetch a job whose cached view may be stale, and update the cache."""
        raw = await self._api.get(JOBS, key.namespace, key.name)
        if raw is None:
            self._cache.drop_job(key)
        else:
            self._cache.put_job(raw)
        return raw

    def _progress_wait(self, key: ObjectKey) -> float:
        return self._progress_written.get(key, -PROGRESS_WRITE_SECONDS) + PROGRESS_WRITE_SECONDS - time.monotonic()

    def _requeue_waiting_jobs(self, namespace: str) -> None:
        """Queue the jobs that wait for the shared cluster."""
        for other in self._cache.shared_cluster_jobs(namespace):
            if other.status.state == State.QUEUED:
                self._queue.add(other.key)

    def _forget(self, key: ObjectKey) -> None:
        self._requeue_waiting_jobs(key.namespace)
        self._progress_written.pop(key, None)
        self._wait_reasons.forget(key)
        self._queue.forget(key)


class _ApplyRefusedError(Exception):
    """The API server refused to apply a manifest."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self._kind = kind

    def add_to(self, observed: Observed) -> Observed:
        """Add the error to what was observed. A refused clean-up counts as finished: the data in the store expires."""
        if self._kind == RAY_JOB:
            return replace(observed, apply_error=str(self))
        log.warning("Clean-up refused", extra={"error": str(self)})
        return replace(observed, clean_up=CleanUpView(finished=True))


def _absence_matters(view: JobView, observed: Observed, number: int) -> bool:
    """Return whether an unknown RayJob of an attempt has consequences: it would count as lost, or be created."""
    if view.deleted_at is not None:
        return False
    if view.status.state in (State.COMPLETE, State.FAILED):
        return False
    attempt = last_attempt(view, observed)
    current = any(found.attempt == attempt for found in owned_ray_jobs(view, observed))
    return number == attempt or not current


def _differs_only_in_progress(before: JobStatus, after: JobStatus) -> bool:
    return after.model_copy(update={"progress": before.progress}) == before


def _count_ended_attempts(view: JobView, status: JobStatus) -> None:
    """Count the attempts that have ended with this status."""
    if status.failed_attempts > view.status.failed_attempts:
        metrics.ATTEMPTS.labels(view.key.namespace, "failed").inc()
    if status.disrupted_attempts > view.status.disrupted_attempts:
        metrics.ATTEMPTS.labels(view.key.namespace, "disrupted").inc()
    if status.state == State.COMPLETE and view.status.state != State.COMPLETE:
        metrics.ATTEMPTS.labels(view.key.namespace, "complete").inc()
