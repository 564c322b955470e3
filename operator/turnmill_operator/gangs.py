"""Attempts that hold a part of their devices and lack room for the rest: which of them gives its devices back."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from turnmill_operator.views import JobView, ObjectKey, RawObject, RayJobView

DEFAULT_TIMEOUT = timedelta(seconds=300)
DEFAULT_SCHEDULERS = (None, "", "default-scheduler")


@dataclass(frozen=True, slots=True)
class Device:
    """A kind of device that a pod asks for, and the labels of the nodes that it may run on."""

    resource: str
    nodes: tuple[tuple[str, str], ...]

    def may_serve(self, other: "Device") -> bool:
        """Return whether a node can have both: no label is asked for with two values."""
        labels = dict(other.nodes)
        return self.resource == other.resource and all(labels.get(name, value) == value for name, value in self.nodes)


@dataclass(frozen=True, slots=True)
class PartialGang:
    """An attempt of which some pods have their devices, and others find no room."""

    held: frozenset[Device]
    lacking: frozenset[Device]


@dataclass(frozen=True, slots=True)
class _Waiting:
    since: datetime
    attempt: int
    age: tuple[datetime, ObjectKey]
    gang: PartialGang


class Gangs:
    """The attempts that wait with a part of their devices; of those that block each other the oldest job goes first."""

    def __init__(self, timeout: timedelta = DEFAULT_TIMEOUT) -> None:
        self._timeout = timeout
        self._waiting: dict[ObjectKey, _Waiting] = {}

    def observe(self, view: JobView, ray_job: RayJobView, pods: Sequence[RawObject], now: datetime) -> str:
        """Take note of an attempt's pods; return the older job that it has to give way to, empty if there is none."""
        gang = partial_gang(pods)
        # Kueue starts a run only if there is room for all of it; deleted pods free theirs.
        if gang is None or not self._timeout or ray_job.queue or ray_job.deleting or not ray_job.own_cluster:
            self.forget(view.key)
            return ""
        before = self._waiting.get(view.key)
        since = before.since if before is not None and before.attempt == ray_job.attempt else now
        own = _Waiting(since, ray_job.attempt, (view.created_at, view.key), gang)
        self._waiting[view.key] = own
        older = [other for other in self._waiting.values() if other.age < own.age and _blocks(own, other)]
        if now - since < self._timeout:
            return ""
        waited = [other.age for other in older if now - other.since >= self._timeout]
        return "/".join(min(waited)[1]) if waited else ""

    def forget(self, key: ObjectKey) -> None:
        """Forget a job whose attempt does not wait for devices."""
        self._waiting.pop(key, None)


def partial_gang(pods: Sequence[RawObject]) -> PartialGang | None:
    """Return what an attempt holds and lacks; None if it is complete, holds nothing, or has a scheduler of its own."""
    if any(pod["spec"].get("schedulerName") not in DEFAULT_SCHEDULERS for pod in pods if "spec" in pod):
        return None
    held = frozenset(device for pod in pods if (pod.get("spec") or {}).get("nodeName") for device in _devices(pod))
    lacking = frozenset(device for pod in pods if _is_unschedulable(pod) for device in _devices(pod))
    return PartialGang(held, lacking) if held and lacking else None


def _blocks(younger: _Waiting, older: _Waiting) -> bool:
    return any(held.may_serve(lacking) for held in younger.gang.held for lacking in older.gang.lacking)


def _is_unschedulable(pod: RawObject) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(found["type"] == "PodScheduled" and found.get("reason") == "Unschedulable" for found in conditions)


def _devices(pod: RawObject) -> Iterator[Device]:
    """Yield the devices that a pod asks for: resources with a domain, such as nvidia.com/gpu."""
    spec = pod.get("spec") or {}
    nodes: Mapping[str, str] = spec.get("nodeSelector") or {}
    for container in spec.get("containers", ()):
        resources = container.get("resources") or {}
        for name in (resources.get("limits") or {}) | (resources.get("requests") or {}):
            if "/" in name:
                yield Device(name, tuple(sorted(nodes.items())))
