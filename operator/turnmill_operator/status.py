"""The status of a job: the closed lists of states and reasons, and the conditions built from them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal, get_args

from turnmill.jobs.status import Condition, ConditionType, JobProgress, JobStatus

MAX_MESSAGE_CHARACTERS = 2048


class State(StrEnum):
    """The state of a job in one word, as `kubectl get` prints it."""

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
    """Reasons of conditions."""

    # Admitted
    ADMITTED = "Admitted"
    INVALID_SPEC = "InvalidSpec"
    NO_TEAM = "NoTeam"
    BROKEN_TEAM = "BrokenTeam"
    NO_KUBERAY = "NoKubeRay"
    KUBERAY_TOO_OLD = "KubeRayTooOld"
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
    DISRUPTED = "Disrupted"
    GAVE_WAY = "GaveWay"
    ENDED = "Ended"

    # Complete
    REACHED_LAST_STEP = "ReachedLastStep"
    NOT_FINISHED = "NotFinished"

    # Failed: the cause of the last attempt's failure
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


NON_RETRYABLE_REASONS = frozenset({Reason.RUN_GAVE_UP, Reason.SETTINGS_REFUSED, Reason.RAY_JOB_REFUSED})
"""Reasons of failures that another attempt would repeat."""

DISRUPTABLE_REASONS = frozenset({Reason.HEAD_LOST, Reason.RUN_FAILED, Reason.RUN_LOST, Reason.SUBMISSION_FAILED})
"""Reasons of failures that the loss of a pod may have caused."""

OPERATOR_DECIDED_REASONS = frozenset({Reason.START_TIMEOUT, Reason.RUN_LOST, Reason.HEAD_LOST})
"""Reasons of failures that the operator itself detects, so that the RayJob runs until it is deleted."""


@dataclass(frozen=True, slots=True)
class DesiredCondition:
    """A condition as it should be written: its status, reason and message."""

    is_true: bool
    reason: Reason
    message: str = ""


@dataclass(frozen=True, slots=True)
class DesiredStatus:
    """A job's status without transition times; conditions left out are those of a job that has not started."""

    state: State
    conditions: Mapping[ConditionType, DesiredCondition]
    attempt: int = 0
    failed_attempts: int = 0
    disrupted_attempts: int = 0
    failed_nodes: tuple[str, ...] = ()
    cluster: str | None = None
    progress: JobProgress | None = None
    next_attempt_time: datetime | None = None


NOT_STARTED: Mapping[ConditionType, DesiredCondition] = {
    "Admitted": DesiredCondition(True, Reason.ADMITTED, "The team's settings can give what the job asks for."),
    "ClusterReady": DesiredCondition(False, Reason.NOT_STARTED),
    "Running": DesiredCondition(False, Reason.NOT_STARTED),
    "Complete": DesiredCondition(False, Reason.NOT_FINISHED),
    "Failed": DesiredCondition(False, Reason.NOT_FINISHED),
    "Suspended": DesiredCondition(False, Reason.NOT_SUSPENDED),
}


def build_status(desired: DesiredStatus, *, before: JobStatus, generation: int, now: datetime) -> JobStatus:
    """Build the status to write. A condition's transition time is that of its last change between true and false."""
    conditions = {**NOT_STARTED, **desired.conditions}
    earlier = {condition.type: condition for condition in before.conditions}
    return JobStatus(
        observed_generation=generation,
        state=desired.state,
        attempt=desired.attempt,
        failed_attempts=desired.failed_attempts,
        disrupted_attempts=desired.disrupted_attempts,
        failed_nodes=desired.failed_nodes,
        cluster=desired.cluster,
        progress=desired.progress,
        next_attempt_time=desired.next_attempt_time,
        conditions=tuple(
            _condition(kind, conditions[kind], earlier.get(kind), generation, now) for kind in get_args(ConditionType)
        ),
    )


def find_condition(status: JobStatus, kind: ConditionType) -> Condition | None:
    """Return the condition of one type; None if the status has none."""
    return next((found for found in status.conditions if found.type == kind), None)


def is_condition_true(status: JobStatus, kind: ConditionType) -> bool:
    """Return whether the condition of one type is true."""
    found = find_condition(status, kind)
    return found is not None and found.status == "True"


def finished_at(status: JobStatus) -> datetime | None:
    """Return the time at which the job completed or failed; None if it has not."""
    for kind in ("Complete", "Failed"):
        found = find_condition(status, kind)
        if found is not None and found.status == "True":
            return found.last_transition_time
    return None


def _condition(
    kind: ConditionType, desired: DesiredCondition, before: Condition | None, generation: int, now: datetime
) -> Condition:
    status: Literal["True", "False"] = "True" if desired.is_true else "False"
    same = before is not None and before.status == status
    return Condition(
        type=kind,
        status=status,
        observed_generation=generation,
        last_transition_time=before.last_transition_time if before is not None and same else now,
        reason=desired.reason,
        message=desired.message[:MAX_MESSAGE_CHARACTERS],
    )
