"""Brings one job in step: looks, asks the pure core what should be, and does it."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from turnmill.jobs.status import JobStatus
from turnmill_operator import metrics
from turnmill_operator.api import BATCH_JOBS, JOBS, PODS, RAY_JOBS, Api, ApiError
from turnmill_operator.cache import Cache
from turnmill_operator.events import build_event, note_of
from turnmill_operator.outcome import Stage, stage_of
from turnmill_operator.plan import Plan, desired, last_attempt, owned
from turnmill_operator.resources import EVENT, RAY_JOB, Manifest, clean_up_name, ray_job_name
from turnmill_operator.status import State, ended_at
from turnmill_operator.views import (
    FINALIZER,
    CleanUpView,
    JobView,
    Key,
    Observed,
    Raw,
    RayJobView,
    clean_up_view,
    job_view,
    ray_job_view,
    version_of,
    why_waiting,
)
from turnmill_operator.work_queue import WorkQueue

PROGRESS_SECONDS = 30.0
PODS_AFTER, PODS_EVERY_SECONDS = timedelta(seconds=15), 30.0
REFUSALS = frozenset({400, 403, 422})

log = logging.getLogger(__name__)


def _now() -> datetime:
    """The time as conditions have it."""
    return datetime.now(UTC).replace(microsecond=0)


class Reconciler:
    """Looks at jobs whose keys come out of the queue."""

    def __init__(self, api: Api, cache: Cache, queue: WorkQueue, clock: Callable[[], datetime] = _now) -> None:
        self._api = api
        self._cache = cache
        self._queue = queue
        self._now = clock
        self._progress_written: dict[Key, float] = {}
        self._waiting: dict[Key, tuple[float, str]] = {}
        self._sharing = asyncio.Lock()

    async def reconcile(self, key: Key) -> None:
        """Bring one job in step; may be called any number of times."""
        view = self._cache.jobs.get(key)
        if view is None:
            self._forget(key)
        elif view.asks_for_shared_cluster:
            # Which one goes first is judged one after the other.
            async with self._sharing:
                await self._look(view)
            if ended_at(view.status) is None:
                return
            self._wake_line(key.namespace)
        else:
            await self._look(view)

    async def _look(self, view: JobView) -> None:
        observed = await self._observe(view)
        try:
            await self._carry_out(view, desired(view, observed, self._now()))
        except _RefusedError as refused:
            await self._carry_out(view, desired(view, refused.seen(observed), self._now()))
        except ApiError:
            if view.key in self._cache.jobs:
                raise
            # The job has gone meanwhile.

    async def _observe(self, view: JobView) -> Observed:
        key, cache = view.key, self._cache
        observed = Observed(team=cache.teams.get(key.namespace), kuberay=cache.kuberay, ray_jobs=cache.ray_jobs(key))
        observed = replace(observed, ray_jobs=await self._confirmed(view, observed))
        if view.deleted_at is not None and view.has_finalizer:
            found = await self._api.get(BATCH_JOBS, key.namespace, clean_up_name(key.name))
            return replace(observed, clean_up=clean_up_view(found) if found else None)
        return replace(
            observed,
            progress=cache.progress(key, last_attempt(view, observed)),
            waiting=await self._why_waiting(view, observed),
            ahead=cache.ahead_of(view) if view.asks_for_shared_cluster else "",
        )

    async def _confirmed(self, view: JobView, observed: Observed) -> tuple[RayJobView, ...]:
        """The job's RayJobs; one that no watch has told of is looked up before anything follows from its absence."""
        attempt = last_attempt(view, observed)
        known = {found.name: found for found in observed.ray_jobs}
        if view.ours:
            for number in {attempt, attempt + 1} - {0}:
                name = ray_job_name(view.key.name, number)
                if name not in known and _follows_from_absence(view, observed, number):
                    raw = await self._api.get(RAY_JOBS, view.key.namespace, name)
                    if raw is not None:
                        known[name] = ray_job_view(raw)
        return tuple(known.values())

    async def _why_waiting(self, view: JobView, observed: Observed) -> str:
        """Why the pods of a cluster do not run, asked for now and then."""
        current = next((r for r in owned(view, observed) if r.attempt == last_attempt(view, observed)), None)
        if current is None or not current.cluster or current.suspend or stage_of(current) is not Stage.STARTING:
            self._waiting.pop(view.key, None)
            return ""
        if self._now() - (current.start_time or current.created_at) < PODS_AFTER:
            self._queue.add_after(view.key, PODS_AFTER.total_seconds())
            return ""
        asked_at, text = self._waiting.get(view.key, (0.0, ""))
        if time.monotonic() - asked_at >= PODS_EVERY_SECONDS:
            selector = f"ray.io/cluster={current.cluster}"
            text = why_waiting([pod async for pod in self._api.list(PODS, view.key.namespace, labels=selector)])
            self._waiting[view.key] = (time.monotonic(), text)
        self._queue.add_after(view.key, PODS_EVERY_SECONDS)
        return text

    async def _carry_out(self, view: JobView, plan: Plan) -> None:
        key = view.key
        if plan.hold:
            view = await self._apply_job(view, finalizers=[FINALIZER])
        elif any(manifest["kind"] == RAY_JOB for manifest in plan.apply):
            await self._confirm(view)
        for manifest in plan.apply:
            await self._apply(manifest)
        if plan.status is not None:
            await self._write_status(view, plan.status)
        for ray_job in plan.delete:
            # In the foreground: the RayJob is gone when its pods are, and nothing of it writes to the store any more.
            await self._api.delete(RAY_JOBS, key.namespace, ray_job.name, policy="Foreground")
        if plan.let_go:
            await self._apply_job(view, finalizers=[])
        if plan.delete_job:
            await self._api.delete(JOBS, key.namespace, key.name, uid=view.uid)
        if plan.check_again is not None:
            self._queue.add_after(key, (plan.check_again - self._now()).total_seconds() + 0.05)

    async def _apply(self, manifest: Manifest) -> None:
        kind = manifest["kind"]
        try:
            raw = await self._api.apply(manifest)
        except ApiError as error:
            if error.code not in REFUSALS:
                raise
            if kind == EVENT:
                # What it tells is in the status as well.
                log.warning("Event refused", extra={"error": str(error)})
                return
            raise _RefusedError(kind, error.message) from error
        if kind == RAY_JOB:
            self._cache.put_ray_job(raw)

    async def _write_status(self, view: JobView, status: JobStatus) -> None:
        if _is_progress_alone(view.status, status) and (wait := self._progress_wait(view.key)) > 0:
            self._queue.add_after(view.key, wait)
            return
        if (note := note_of(view.status, status)) is not None:
            log.info(
                "Job changed",
                extra={
                    "namespace": view.key.namespace,
                    "job": view.key.name,
                    "state": status.state,
                    "reason": note.reason,
                },
            )
            await self._apply(build_event(view, note, self._now()))
        await self._apply_job(view, status=status.model_dump(mode="json", by_alias=True, exclude_none=True))
        self._progress_written[view.key] = time.monotonic()
        _count(view, status)

    async def _apply_job(self, view: JobView, **fields: object) -> JobView:
        """Write a part of the job, provided that it is still as it was read."""
        try:
            raw = await self._api.apply_job(view.key, view.uid, view.version, **fields)
        except ApiError as error:
            if error.code in (404, 409):
                await self._refresh(view.key)
            raise
        self._cache.put_job(raw)
        return job_view(raw, view)

    async def _confirm(self, view: JobView) -> None:
        """Let no attempt run on the word of a job that has changed since it was read; a replica may be far behind."""
        raw = await self._refresh(view.key)
        if raw is None or version_of(raw) != view.version:
            raise ApiError(409, "The job has changed since it was read.")

    async def _refresh(self, key: Key) -> Raw | None:
        """Read a job anew that may not be as a watch has told."""
        raw = await self._api.get(JOBS, key.namespace, key.name)
        if raw is None:
            self._cache.drop_job(key)
        else:
            self._cache.put_job(raw)
        return raw

    def _progress_wait(self, key: Key) -> float:
        return self._progress_written.get(key, -PROGRESS_SECONDS) + PROGRESS_SECONDS - time.monotonic()

    def _wake_line(self, namespace: str) -> None:
        """Look at those that wait for the shared cluster."""
        for other in self._cache.sharing(namespace):
            if other.status.state == State.QUEUED:
                self._queue.add(other.key)

    def _forget(self, key: Key) -> None:
        self._wake_line(key.namespace)
        self._progress_written.pop(key, None)
        self._waiting.pop(key, None)
        self._queue.forget(key)


class _RefusedError(Exception):
    """The API server does not take what should be."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self._kind = kind

    def seen(self, observed: Observed) -> Observed:
        """What follows from it: a job says why its RayJob is refused; what cannot be cleaned up expires."""
        if self._kind == RAY_JOB:
            return replace(observed, refusal=str(self))
        log.warning("Clean-up refused", extra={"error": str(self)})
        return replace(observed, clean_up=CleanUpView(finished=True))


def _follows_from_absence(view: JobView, observed: Observed, number: int) -> bool:
    """Whether it matters that an attempt's RayJob is not known: it counts as lost, or is made."""
    if view.deleted_at is not None:
        return False
    if view.status.state in (State.COMPLETE, State.FAILED):
        return False
    attempt = last_attempt(view, observed)
    current = any(found.attempt == attempt for found in owned(view, observed))
    return number == attempt or not current


def _is_progress_alone(before: JobStatus, after: JobStatus) -> bool:
    return after.model_copy(update={"progress": before.progress}) == before


def _count(view: JobView, status: JobStatus) -> None:
    """Count attempts that have ended."""
    if status.failed_attempts > view.status.failed_attempts:
        metrics.ATTEMPTS.labels(view.key.namespace, "failed").inc()
    if status.state == State.COMPLETE and view.status.state != State.COMPLETE:
        metrics.ATTEMPTS.labels(view.key.namespace, "complete").inc()
