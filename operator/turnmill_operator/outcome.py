"""What a RayJob's status means for the attempt that it stands for."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto

from turnmill.jobs.status import ConditionType, JobStatus
from turnmill_operator.status import Finding, Reason, State, condition, holds
from turnmill_operator.views import JobView, Observed, Progress, RayJobView

REFUSED_LIMIT = timedelta(seconds=120)
SILENCE_MARGIN = timedelta(seconds=300)
# How `turnmill run` ends where its settings cannot work, where its attempt has been started before, and where another
# attempt would fail as this one did.
SETTINGS_EXIT, REPEATED_EXIT, FINAL_EXIT = 2, 3, 4
HEAD_CHARACTERS, TAIL_CHARACTERS = 120, 600
_EXIT_CODE = re.compile(r"exit code (\d+)")
_LAST_WORDS = re.compile(r"The run failed \((\w+)\): (.+)")


class Stage(Enum):
    """How far the RayJob of an attempt is."""

    STARTING = auto()
    CLUSTER_READY = auto()
    RUNNING = auto()
    SUCCEEDED = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed; the message is the end of a sentence."""

    reason: Reason
    message: str


def stage_of(ray_job: RayJobView) -> Stage:
    """How far the RayJob is."""
    if ray_job.job_status == "SUCCEEDED":
        return Stage.SUCCEEDED
    if ray_job.job_status in ("FAILED", "STOPPED") or ray_job.deployment_status in ("Failed", "ValidationFailed"):
        return Stage.FAILED
    if ray_job.deployment_status == "Running" and ray_job.job_status == "RUNNING":
        return Stage.RUNNING
    if ray_job.deployment_status == "Running" or (ray_job.cluster_ready and not ray_job.suspend):
        return Stage.CLUSTER_READY
    return Stage.STARTING


def is_over(ray_job: RayJobView) -> bool:
    """Whether nothing of it runs or will run."""
    return stage_of(ray_job) in (Stage.SUCCEEDED, Stage.FAILED)


def failure_of(ray_job: RayJobView) -> Failure | None:
    """Why the attempt failed, by what KubeRay says; None where it has not."""
    if stage_of(ray_job) is not Stage.FAILED:
        return None
    said = _shortened(ray_job.message) or ray_job.reason or "KubeRay says nothing about it"
    if ray_job.deployment_status == "ValidationFailed":
        return Failure(Reason.RAY_JOB_REFUSED, f"KubeRay refused its RayJob: {said}.")
    if ray_job.job_status == "STOPPED":
        return Failure(Reason.RUN_STOPPED, "somebody stopped its Ray job.")
    if ray_job.reason == "SubmissionFailed":
        return Failure(Reason.SUBMISSION_FAILED, f"its Ray job could not be submitted: {said}.")
    if ray_job.reason in ("DeadlineExceeded", "PreRunningDeadlineExceeded"):
        return Failure(Reason.START_TIMEOUT, f"{said}.")
    code = _EXIT_CODE.search(ray_job.message)
    match int(code[1]) if code else None:
        case outcome if outcome == SETTINGS_EXIT:
            return Failure(Reason.SETTINGS_REFUSED, f"the run refused its settings: {said}.")
        case outcome if outcome == REPEATED_EXIT:
            return Failure(Reason.HEAD_LOST, "its Ray head was lost.")
        case outcome if outcome == FINAL_EXIT:
            return Failure(Reason.RUN_GAVE_UP, f"{said}.")
        case _:
            return Failure(Reason.RUN_FAILED, f"{said}.")


def overdue(ray_job: RayJobView, view: JobView, progress: Progress, now: datetime) -> Failure | None:
    """Why the attempt counts as failed though KubeRay does not say so: nothing waits for ever."""
    assert view.job is not None
    due = _due(ray_job, view, progress)
    if due is None or now < due:
        return None
    if stage_of(ray_job) is not Stage.RUNNING:
        if view.status.attempt == ray_job.attempt and holds(view.status, "Running"):
            # It ran, and KubeRay submits it once more.
            return Failure(Reason.HEAD_LOST, "its Ray head was lost.")
        limit = view.job.spec.start_timeout_seconds
        return Failure(
            Reason.START_TIMEOUT,
            f"its Ray cluster was not ready within spec.startTimeoutSeconds ({limit}).",
        )
    return Failure(Reason.RUN_LOST, "the run has stopped to answer, though KubeRay says that it runs.")


def next_check(ray_job: RayJobView, view: JobView, progress: Progress) -> datetime | None:
    """When the attempt is overdue."""
    return _due(ray_job, view, progress) if view.job is not None else None


def _due(ray_job: RayJobView, view: JobView, progress: Progress) -> datetime | None:
    assert view.job is not None
    if stage_of(ray_job) is Stage.RUNNING:
        # Who has never answered may be out of the operator's reach and well.
        if not has_answered(view.status, ray_job):
            return None
        stall = timedelta(seconds=view.job.spec.training.stall_timeout_seconds)
        limits = [
            progress.refused_since and progress.refused_since + REFUSED_LIMIT,
            progress.silent_since and progress.silent_since + stall + SILENCE_MARGIN,
        ]
        return min((limit for limit in limits if limit), default=None)
    # Who waits for a queue's quota is not late. KubeRay sets another start time, a moment after it is let go.
    if ray_job.suspend or ray_job.deployment_status in ("Suspending", "Suspended"):
        return None
    if not ray_job.deployment_status and ray_job.start_time is not None:
        return None
    since = ray_job.start_time or ray_job.created_at
    return since + timedelta(seconds=view.job.spec.start_timeout_seconds)


def has_answered(status: JobStatus, ray_job: RayJobView) -> bool:
    """Whether the attempt's run has told its progress before."""
    running = condition(status, "Running")
    return status.attempt == ray_job.attempt and running is not None and running.reason == Reason.TRAINING


def findings_of(
    ray_job: RayJobView, observed: Observed, status: JobStatus
) -> tuple[State, Mapping[ConditionType, Finding]]:
    """State and conditions of an attempt that is under way."""
    queued = ray_job.suspend
    match stage_of(ray_job):
        case Stage.RUNNING:
            answered = has_answered(status, ray_job) or observed.progress.values is not None
            running = (
                Finding(True, Reason.TRAINING, "The run trains and tells its progress.")
                if answered
                else Finding(True, Reason.STARTED, "The run has started.")
            )
            return State.RUNNING, {"ClusterReady": _ready(), "Running": running}
        case Stage.CLUSTER_READY:
            waiting = Finding(False, Reason.WAITING_FOR_RUN, "The run is being submitted.")
            return State.STARTING, {"ClusterReady": _ready(), "Running": waiting}
        case _ if queued:
            message = "Kueue has not admitted the run to its queue's quota."
            return State.QUEUED, {
                "ClusterReady": Finding(False, Reason.QUEUED, message),
                "Running": Finding(False, Reason.WAITING_FOR_CLUSTER),
            }
        case _:
            return State.STARTING, {
                "ClusterReady": _pods(ray_job, observed.waiting),
                "Running": Finding(False, Reason.WAITING_FOR_CLUSTER),
            }


def _ready() -> Finding:
    return Finding(True, Reason.READY, "Every pod of the Ray cluster is ready.")


def _pods(ray_job: RayJobView, waiting: str) -> Finding:
    if not waiting:
        return Finding(False, Reason.WAITING_FOR_PODS, "The pods of the Ray cluster are starting.")
    look = f"kubectl describe pods -l ray.io/cluster={ray_job.cluster}"
    return Finding(False, Reason.PODS_NOT_READY, f"Pods of the Ray cluster do not run: {waiting}. See `{look}`.")


def _shortened(message: str) -> str:
    """The message on one line: the run's own last words if it had any, else what happened and the end of the logs."""
    if words := _LAST_WORDS.findall(message):
        cause, text = words[-1]
        return f"{text.strip().rstrip('.')} ({cause})"
    line = " ".join(message.split()).rstrip(".")
    if len(line) <= HEAD_CHARACTERS + TAIL_CHARACTERS:
        return line
    return f"{line[:HEAD_CHARACTERS]} … {line[-TAIL_CHARACTERS:]}"
