"""Kubernetes events about jobs."""

from dataclasses import dataclass
from datetime import datetime

from turnmill.jobs.job import API_VERSION, KIND
from turnmill.jobs.status import Condition, ConditionType, JobStatus
from turnmill_operator.resources import EVENT, Manifest, ray_job_name
from turnmill_operator.status import State, find_condition
from turnmill_operator.views import JobView

COMPONENT = "turnmill-operator"

# The states that are reported as events, and the condition that holds the reason and the message.
EVENT_CONDITIONS: dict[str, ConditionType] = {
    State.NOT_ADMITTED: "Admitted",
    State.RETRYING: "Running",
    State.COMPLETE: "Complete",
    State.FAILED: "Failed",
    State.SUSPENDED: "Suspended",
}
SUSPENDED_STATES = (State.SUSPENDING, State.SUSPENDED)
WARNING_STATES = (State.NOT_ADMITTED, State.RETRYING, State.FAILED)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a job, to be recorded as a Kubernetes event."""

    reason: str
    message: str
    warning: bool
    attempt: int


def event_for(before: JobStatus, after: JobStatus) -> Event | None:
    """Return the event that a change of the status calls for; None for most changes."""
    state = after.state or ""
    condition_type = EVENT_CONDITIONS.get(state)
    if condition_type is not None:
        current, previous = find_condition(after, condition_type), find_condition(before, condition_type)
        if state != before.state or _reason_and_message(current) != _reason_and_message(previous):
            assert current is not None
            return Event(current.reason, current.message, state in WARNING_STATES, after.attempt)
        return None
    if state == State.STARTING and (after.attempt > before.attempt or before.state in SUSPENDED_STATES):
        return Event("AttemptStarted", f"Attempt {after.attempt} starts.", False, after.attempt)
    return None


def build_event(view: JobView, event: Event, now: datetime) -> Manifest:
    """Build the manifest of an event. Its name follows from its content, so applying it twice creates one object."""
    time = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": EVENT,
        "metadata": {
            "name": f"{ray_job_name(view.key.name, event.attempt)}.{view.uid[:8]}.{event.reason.lower()}",
            "namespace": view.key.namespace,
        },
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": view.key.name,
            "namespace": view.key.namespace,
            "uid": view.uid,
        },
        "type": "Warning" if event.warning else "Normal",
        "reason": event.reason,
        "message": event.message[:1024],
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
    }


def _reason_and_message(condition: Condition | None) -> tuple[str, str] | None:
    return (condition.reason, condition.message) if condition is not None else None
