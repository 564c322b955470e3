"""Reasons why an attempt does not start, in the words of scheduler, kubelet and Kueue."""

import time
from dataclasses import replace
from datetime import datetime, timedelta

from turnmill_operator.api import EVENTS, PODS, WORKLOADS, ApiClient, ApiError
from turnmill_operator.gangs import Gangs
from turnmill_operator.plan import last_attempt, owned_ray_jobs
from turnmill_operator.ray_job_status import Stage, stage_of
from turnmill_operator.views import JOB_UID_LABEL, JobView, ObjectKey, Observed, RawObject, RayJobView
from turnmill_operator.work_queue import WorkQueue

PODS_DELAY, QUEUE_DELAY = timedelta(seconds=15), timedelta(seconds=3)
POLL_SECONDS = 30.0
# Pods of a group usually wait for the same reason.
MAX_PODS_WITH_EVENTS = 3
MAX_CHARACTERS = 500
# With many waiting jobs, each is looked up less often.
SECONDS_PER_WAITING_JOB = 0.2


class WaitReasons:
    """Looks up, from time to time, why pods of a starting cluster do not run and why Kueue has not admitted a run."""

    def __init__(self, api: ApiClient, queue: WorkQueue, gangs: Gangs | None = None) -> None:
        self._api = api
        self._queue = queue
        self._gangs = gangs or Gangs()
        self._known: dict[ObjectKey, tuple[float, bool, str]] = {}

    async def add_to(self, observed: Observed, view: JobView, now: datetime) -> Observed:
        """Return what was observed, with the reason why the last attempt waits."""
        current = next((r for r in owned_ray_jobs(view, observed) if r.attempt == last_attempt(view, observed)), None)
        if current is None or not _waits(current):
            self.forget(view.key)
            return observed
        delay = QUEUE_DELAY if current.held_by_queue else PODS_DELAY
        if now - (current.start_time or current.created_at) < delay:
            self._queue.add_after(view.key, delay.total_seconds())
            return observed
        poll_seconds = max(POLL_SECONDS, SECONDS_PER_WAITING_JOB * len(self._known))
        asked_at, held, reason = self._known.get(view.key, (-poll_seconds, current.held_by_queue, ""))
        gives_way_to = ""
        if held != current.held_by_queue or time.monotonic() - asked_at >= poll_seconds:
            if current.held_by_queue:
                self._gangs.forget(view.key)
                reason = await self._queue_message(current)
            else:
                pods = [
                    pod
                    async for pod in self._api.list(
                        PODS, view.key.namespace, labels=f"ray.io/cluster={current.cluster}"
                    )
                ]
                # Only from fresh pods: an attempt that has found room since must not lose it.
                gives_way_to = self._gangs.observe(view, current, pods, now)
                reason = await self._pending_pods(current, pods)
            asked_at = time.monotonic()
            self._known[view.key] = (asked_at, current.held_by_queue, reason)
        self._queue.add_after(view.key, asked_at + poll_seconds - time.monotonic())
        if current.held_by_queue:
            return replace(observed, queue_message=reason)
        return replace(observed, pending_pods=reason, gives_way_to=gives_way_to)

    def forget(self, key: ObjectKey) -> None:
        """Forget the reason of a job that does not wait."""
        self._known.pop(key, None)
        self._gangs.forget(key)

    async def _pending_pods(self, ray_job: RayJobView, pods: list[RawObject]) -> str:
        """Return why pods do not run: KubeRay could not create them, their status says it, or events do."""
        known = "; ".join(filter(None, (ray_job.cluster_problem, describe_pending_pods(pods))))
        if known:
            return known
        # Volumes that cannot be mounted, and clusters that an admission webhook refuses, are in events alone.
        names = [pod["metadata"]["name"] for pod in pods if not _is_running(pod)][:MAX_PODS_WITH_EVENTS]
        found = [await self._last_warning(ray_job.namespace, name) for name in (*names, ray_job.cluster, ray_job.name)]
        return "; ".join(dict.fromkeys(filter(None, found)))

    async def _last_warning(self, namespace: str, name: str) -> str:
        """Return the last warning among an object's events; empty if the operator may not read them."""
        fields = f"involvedObject.name={name},type=Warning"
        try:
            warnings = [event async for event in self._api.list(EVENTS, namespace, fields=fields)]
        except ApiError as error:
            if error.code != 403:
                raise
            return ""
        return describe_warning(max(warnings, key=_event_time)) if warnings else ""

    async def _queue_message(self, ray_job: RayJobView) -> str:
        """Return Kueue's reason; empty if there is no Kueue, or the operator may not read its Workloads."""
        labels = f"{JOB_UID_LABEL}={ray_job.uid}"
        for resource in WORKLOADS:
            try:
                found = [workload async for workload in self._api.list(resource, ray_job.namespace, labels=labels)]
            except ApiError as error:
                if error.code not in (403, 404):
                    raise
            else:
                return next(filter(None, map(describe_workload, found)), "")
        return ""


def _waits(ray_job: RayJobView) -> bool:
    """Return whether the RayJob waits for quota, or its cluster for pods."""
    starting = bool(ray_job.cluster) and not ray_job.suspend
    return stage_of(ray_job) is Stage.STARTING and (ray_job.held_by_queue or starting)


def describe_pending_pods(pods: list[RawObject]) -> str:
    """Return the reasons why pods are not running, as scheduler and kubelet report them, without repetitions."""
    causes: dict[str, None] = {}
    for pod in pods:
        status = pod.get("status") or {}
        for found in status.get("conditions", ()):
            if found["type"] == "PodScheduled" and found["status"] == "False":
                causes[_one_line(found.get("message") or found.get("reason"))] = None
        for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
            state = container.get("state") or {}
            waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
            if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                causes[f"{waiting['reason']}: {_one_line(waiting.get('message'))}".rstrip(": ")] = None
                ended = (container.get("lastState") or {}).get("terminated") or {}
            if ended.get("exitCode"):
                said = _one_line(ended.get("message") or ended.get("reason"))
                causes[f"container {container.get('name', '')} ended with exit code {ended['exitCode']}: {said}"] = None
    return "; ".join(cause for cause in causes if cause)


def describe_warning(event: RawObject) -> str:
    """Return what an event says: `FailedMount: the volume cannot be mounted`."""
    return f"{event.get('reason', '')}: {_one_line(event.get('message'))}".strip(": ")


def _event_time(event: RawObject) -> str:
    series = event.get("series") or {}
    times = (event.get("lastTimestamp"), series.get("lastObservedTime"), event.get("eventTime"))
    return str(next(filter(None, times), event["metadata"].get("creationTimestamp", "")))


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())[:MAX_CHARACTERS].rstrip(".")


def _is_running(pod: RawObject) -> bool:
    return bool((pod.get("status") or {}).get("phase") == "Running")


def describe_workload(workload: RawObject) -> str:
    """Return the reason why Kueue has not admitted a Workload; empty if it gives none."""
    conditions = {found["type"]: found for found in (workload.get("status") or {}).get("conditions") or ()}
    for kind in ("QuotaReserved", "Admitted"):
        found = conditions.get(kind)
        if found is not None and found["status"] == "False":
            return str(found.get("message", "")).rstrip(".")
    return ""
