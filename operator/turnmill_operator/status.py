"""What a job's status says: the closed list of states and reasons, and the conditions made of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal, get_args

from turnmill.jobs.status import Condition, ConditionType, JobProgress, JobStatus

MAX_MESSAGE_CHARACTERS = 2048


class State(StrEnum):
    """A job in one word, for lists."""

    NOT_ADMITTED = "NotAdmitted"
    QUEUED = "Queued"
    STARTING = "Starting"
    RUNNING = "Running"
    RETRYING = "Retrying"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"
    DELETING = "Deleting"


class Reason(StrEnum):
    """Why a condition is as it is."""

    # Admitted
    ADMITTED = "Admitted"
    INVALID_SPEC = "InvalidSpec"
    NO_TEAM = "NoTeam"
    BROKEN_TEAM = "BrokenTeam"
    NO_KUBERAY = "NoKubeRay"
    NO_SUCH_ACCELERATOR = "NoSuchAccelerator"
    NO_SUCH_DEVICE = "NoSuchDevice"
    TOO_MANY_GPUS = "TooManyGpus"
    TOO_MANY_NODES = "TooManyNodes"
    NO_SHARED_CLUSTER = "NoSharedCluster"
    NAME_TAKEN = "NameTaken"

    # ClusterReady
    NOT_STARTED = "NotStarted"
    QUEUED = "Queued"
    SHARED_CLUSTER_BUSY = "SharedClusterBusy"
    WAITING_FOR_PODS = "WaitingForPods"
    PODS_NOT_READY = "PodsNotReady"
    READY = "Ready"
    RELEASED = "Released"

    # Running
    WAITING_FOR_CLUSTER = "WaitingForCluster"
    WAITING_FOR_RUN = "WaitingForRun"
    STARTED = "Started"
    TRAINING = "Training"
    RETRYING = "Retrying"
    ENDED = "Ended"

    # Complete
    REACHED_LAST_STEP = "ReachedLastStep"
    NOT_FINISHED = "NotFinished"

    # Failed: why the last attempt failed
    RUN_FAILED = "RunFailed"
    RUN_GAVE_UP = "RunGaveUp"
    RUN_STOPPED = "RunStopped"
    RUN_LOST = "RunLost"
    HEAD_LOST = "HeadLost"
    SETTINGS_REFUSED = "SettingsRefused"
    START_TIMEOUT = "StartTimeout"
    SUBMISSION_FAILED = "SubmissionFailed"
    RAY_JOB_REFUSED = "RayJobRefused"
    RAY_JOB_DELETED = "RayJobDeleted"

    # Suspended
    SUSPENDED_BY_SPEC = "SuspendedBySpec"
    STOPPING = "Stopping"
    NOT_SUSPENDED = "NotSuspended"


FINAL_REASONS = frozenset({Reason.RUN_GAVE_UP, Reason.SETTINGS_REFUSED, Reason.RAY_JOB_REFUSED})
"""Failures that another attempt would repeat."""

OWN_VERDICTS = frozenset({Reason.START_TIMEOUT, Reason.RUN_LOST, Reason.HEAD_LOST})
"""Failures of which KubeRay may know nothing: the RayJob goes on until it is deleted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one condition is to say."""

    holds: bool
    reason: Reason
    message: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """A job's status before it has times: what is left out of `findings` is as in a job that has not started."""

    state: State
    findings: Mapping[ConditionType, Finding]
    attempt: int = 0
    failed_attempts: int = 0
    cluster: str | None = None
    progress: JobProgress | None = None
    next_attempt_time: datetime | None = None


NOT_STARTED: Mapping[ConditionType, Finding] = {
    "Admitted": Finding(True, Reason.ADMITTED, "The team's settings can give what the job asks for."),
    "ClusterReady": Finding(False, Reason.NOT_STARTED),
    "Running": Finding(False, Reason.NOT_STARTED),
    "Complete": Finding(False, Reason.NOT_FINISHED),
    "Failed": Finding(False, Reason.NOT_FINISHED),
    "Suspended": Finding(False, Reason.NOT_SUSPENDED),
}


def build_status(report: Report, *, before: JobStatus, generation: int, now: datetime) -> JobStatus:
    """The status as it is written; a condition's time is that of its last change from true to false or back."""
    findings = {**NOT_STARTED, **report.findings}
    earlier = {condition.type: condition for condition in before.conditions}
    return JobStatus(
        observed_generation=generation,
        state=report.state,
        attempt=report.attempt,
        failed_attempts=report.failed_attempts,
        cluster=report.cluster,
        progress=report.progress,
        next_attempt_time=report.next_attempt_time,
        conditions=tuple(
            _condition(kind, findings[kind], earlier.get(kind), generation, now) for kind in get_args(ConditionType)
        ),
    )


def condition(status: JobStatus, kind: ConditionType) -> Condition | None:
    """A condition of a status."""
    return next((found for found in status.conditions if found.type == kind), None)


def holds(status: JobStatus, kind: ConditionType) -> bool:
    """Whether a condition is true."""
    found = condition(status, kind)
    return found is not None and found.status == "True"


def ended_at(status: JobStatus) -> datetime | None:
    """When the job came to its end; None while it has none."""
    for kind in ("Complete", "Failed"):
        found = condition(status, kind)
        if found is not None and found.status == "True":
            return found.last_transition_time
    return None


def _condition(
    kind: ConditionType, finding: Finding, before: Condition | None, generation: int, now: datetime
) -> Condition:
    status: Literal["True", "False"] = "True" if finding.holds else "False"
    same = before is not None and before.status == status
    return Condition(
        type=kind,
        status=status,
        observed_generation=generation,
        last_transition_time=before.last_transition_time if before is not None and same else now,
        reason=finding.reason,
        message=finding.message[:MAX_MESSAGE_CHARACTERS],
    )
