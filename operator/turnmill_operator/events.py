"""Kubernetes events: what happened to a job, told once."""

from dataclasses import dataclass
from datetime import datetime

from turnmill.jobs.job import API_VERSION, KIND
from turnmill.jobs.status import Condition, ConditionType, JobStatus
from turnmill_operator.resources import EVENT, Manifest, ray_job_name
from turnmill_operator.status import State, condition
from turnmill_operator.views import JobView

COMPONENT = "turnmill-operator"

# States worth an event, and the condition whose words tell it.
TOLD_BY: dict[str, ConditionType] = {
    State.NOT_ADMITTED: "Admitted",
    State.RETRYING: "Running",
    State.COMPLETE: "Complete",
    State.FAILED: "Failed",
    State.SUSPENDED: "Suspended",
}
WAITING = (State.SUSPENDING, State.SUSPENDED)
WARNINGS = (State.NOT_ADMITTED, State.RETRYING, State.FAILED)


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened."""

    reason: str
    message: str
    warning: bool
    attempt: int


def note_of(before: JobStatus, after: JobStatus) -> Note | None:
    """What a change of the status is worth telling; None for most changes."""
    state = after.state or ""
    told_by = TOLD_BY.get(state)
    if told_by is not None:
        told, known = condition(after, told_by), condition(before, told_by)
        if state != before.state or _words(told) != _words(known):
            assert told is not None
            return Note(told.reason, told.message, state in WARNINGS, after.attempt)
        return None
    if state == State.STARTING and (after.attempt > before.attempt or before.state in WAITING):
        return Note("AttemptStarted", f"Attempt {after.attempt} starts.", False, after.attempt)
    return None


def build_event(view: JobView, note: Note, now: datetime) -> Manifest:
    """An event with a name that follows from what it says: written twice it is still one."""
    time = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": EVENT,
        "metadata": {
            "name": f"{ray_job_name(view.key.name, note.attempt)}.{view.uid[:8]}.{note.reason.lower()}",
            "namespace": view.key.namespace,
        },
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": view.key.name,
            "namespace": view.key.namespace,
            "uid": view.uid,
        },
        "type": "Warning" if note.warning else "Normal",
        "reason": note.reason,
        "message": note.message[:1024],
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
    }


def _words(told: Condition | None) -> tuple[str, str] | None:
    return (told.reason, told.message) if told is not None else None
