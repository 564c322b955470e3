"""Interpretation of a RayJob's status: the stage, failure, deadline and conditions of the attempt that it runs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto

from turnmill.jobs.status import ConditionType, JobStatus
from turnmill_operator.status import DesiredCondition, Reason, State, find_condition, is_condition_true
from turnmill_operator.views import JOB_UID_LABEL, JobView, Observed, RayJobView, RunProgress

REFUSED_LIMIT = timedelta(seconds=120)
SILENCE_MARGIN = timedelta(seconds=300)
# Exit codes of `turnmill run`: settings refused, attempt started before, failure that another attempt would repeat.
SETTINGS_EXIT_CODE, ALREADY_STARTED_EXIT_CODE, NON_RETRYABLE_EXIT_CODE = 2, 3, 4
HEAD_CHARACTERS, TAIL_CHARACTERS = 120, 600
_EXIT_CODE = re.compile(r"exit code (\d+)")
_RUN_FAILED = re.compile(r"The run failed \((\w+)\): (.+)")


class Stage(Enum):
    """Stage of the RayJob of an attempt."""

    STARTING = auto()
    CLUSTER_READY = auto()
    RUNNING = auto()
    SUCCEEDED = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class Failure:
    """Cause of a failed attempt; the message completes the sentence \"Attempt N failed: ...\"."""

    reason: Reason
    message: str


def stage_of(ray_job: RayJobView) -> Stage:
    """Return the stage of a RayJob."""
    if ray_job.job_status == "SUCCEEDED":
        return Stage.SUCCEEDED
    if ray_job.job_status in ("FAILED", "STOPPED") or ray_job.deployment_status in ("Failed", "ValidationFailed"):
        return Stage.FAILED
    if ray_job.suspend:
        # KubeRay reports what ran before until it notices.
        return Stage.STARTING
    if ray_job.deployment_status == "Running" and ray_job.job_status == "RUNNING":
        return Stage.RUNNING
    if ray_job.deployment_status == "Running" or ray_job.cluster_ready:
        return Stage.CLUSTER_READY
    return Stage.STARTING


def is_finished(ray_job: RayJobView) -> bool:
    """Return True if the RayJob has succeeded or failed, so that none of its processes run."""
    return stage_of(ray_job) in (Stage.SUCCEEDED, Stage.FAILED)


def failure_of(ray_job: RayJobView) -> Failure | None:
    """Return the failure that KubeRay reports; None if there is none."""
    if stage_of(ray_job) is not Stage.FAILED:
        return None
    detail = _summarize(ray_job.message) or ray_job.reason or "KubeRay gives no reason"
    if ray_job.deployment_status == "ValidationFailed":
        return Failure(Reason.RAY_JOB_REFUSED, f"KubeRay refused its RayJob: {detail}.")
    if ray_job.job_status == "STOPPED":
        return Failure(Reason.RUN_STOPPED, "somebody stopped its Ray job.")
    if ray_job.reason == "SubmissionFailed":
        return Failure(Reason.SUBMISSION_FAILED, f"its Ray job could not be submitted: {detail}.")
    if ray_job.reason in ("DeadlineExceeded", "PreRunningDeadlineExceeded"):
        return Failure(Reason.START_TIMEOUT, f"{detail}.")
    code = _EXIT_CODE.search(ray_job.message)
    match int(code[1]) if code else None:
        case exit_code if exit_code == SETTINGS_EXIT_CODE:
            return Failure(Reason.SETTINGS_REFUSED, f"the run refused its settings: {detail}.")
        case exit_code if exit_code == ALREADY_STARTED_EXIT_CODE:
            return Failure(Reason.HEAD_LOST, "its Ray head was lost.")
        case exit_code if exit_code == NON_RETRYABLE_EXIT_CODE:
            return Failure(Reason.RUN_GAVE_UP, f"{detail}.")
        case _:
            return Failure(Reason.RUN_FAILED, f"{detail}.")


def timeout_failure(ray_job: RayJobView, view: JobView, observed: Observed, now: datetime) -> Failure | None:
    """Return the failure of an attempt that is past its deadline, though KubeRay reports none; None otherwise."""
    assert view.job is not None
    deadline = attempt_deadline(ray_job, view, observed.progress)
    if deadline is None or now < deadline:
        return None
    if stage_of(ray_job) is not Stage.RUNNING:
        if view.status.attempt == ray_job.attempt and is_condition_true(view.status, "Running"):
            # It ran, and KubeRay is submitting it once more.
            return Failure(Reason.HEAD_LOST, "its Ray head was lost.")
        limit = view.job.spec.start_timeout_seconds
        return Failure(
            Reason.START_TIMEOUT,
            f"its Ray cluster was not ready within spec.startTimeoutSeconds ({limit})"
            f"{f': {observed.pending_pods}' if observed.pending_pods else ''}.",
        )
    return Failure(Reason.RUN_LOST, "the run has stopped answering, though KubeRay reports it as running.")


def attempt_deadline(ray_job: RayJobView, view: JobView, progress: RunProgress) -> datetime | None:
    """Return the time at which the attempt counts as failed unless it makes progress; None while no limit applies."""
    if view.job is None:
        return None
    if stage_of(ray_job) is Stage.RUNNING:
        # A run that has never answered may be healthy, but out of the operator's reach.
        if not has_answered(view.status, ray_job):
            return None
        stall = timedelta(seconds=view.job.spec.training.stall_timeout_seconds)
        limits = [
            progress.refused_since and progress.refused_since + REFUSED_LIMIT,
            progress.unreachable_since and progress.unreachable_since + stall + SILENCE_MARGIN,
        ]
        return min((limit for limit in limits if limit), default=None)
    # Waiting for a queue's quota has no deadline. KubeRay sets a new start time a moment after the quota is granted.
    if ray_job.suspend or ray_job.deployment_status in ("Suspending", "Suspended"):
        return None
    if not ray_job.deployment_status and ray_job.start_time is not None:
        return None
    since = ray_job.start_time or ray_job.created_at
    return since + timedelta(seconds=view.job.spec.start_timeout_seconds)


def has_answered(status: JobStatus, ray_job: RayJobView) -> bool:
    """Return True if the run of the attempt has reported progress before."""
    running = find_condition(status, "Running")
    return status.attempt == ray_job.attempt and running is not None and running.reason == Reason.TRAINING


def conditions_of(
    ray_job: RayJobView, observed: Observed, status: JobStatus
) -> tuple[State, Mapping[ConditionType, DesiredCondition]]:
    """Return the state and the conditions of an attempt that is under way."""
    queued = ray_job.suspend
    match stage_of(ray_job):
        case Stage.RUNNING:
            answered = has_answered(status, ray_job) or observed.progress.values is not None
            running = (
                DesiredCondition(True, Reason.TRAINING, "The run is training and reports its progress.")
                if answered
                else DesiredCondition(True, Reason.STARTED, "The run has started.")
            )
            return State.RUNNING, {"ClusterReady": _cluster_ready(), "Running": running}
        case Stage.CLUSTER_READY:
            waiting = DesiredCondition(False, Reason.WAITING_FOR_RUN, "The run is being submitted.")
            return State.STARTING, {"ClusterReady": _cluster_ready(), "Running": waiting}
        case _ if queued:
            message = "Kueue has not admitted the run to its queue's quota."
            if observed.queue_message:
                message = (
                    f"Kueue has not admitted the run: {observed.queue_message}. See "
                    f"`kubectl describe workload -l {JOB_UID_LABEL}={ray_job.uid}`."
                )
            return State.QUEUED, {
                "ClusterReady": DesiredCondition(False, Reason.QUEUED, message),
                "Running": DesiredCondition(False, Reason.WAITING_FOR_CLUSTER),
            }
        case _:
            return State.STARTING, {
                "ClusterReady": _pods_not_ready(ray_job, observed.pending_pods),
                "Running": DesiredCondition(False, Reason.WAITING_FOR_CLUSTER),
            }


def _cluster_ready() -> DesiredCondition:
    return DesiredCondition(True, Reason.READY, "Every pod of the Ray cluster is ready.")


def _pods_not_ready(ray_job: RayJobView, pending_pods: str) -> DesiredCondition:
    if not pending_pods:
        return DesiredCondition(False, Reason.WAITING_FOR_PODS, "The pods of the Ray cluster are starting.")
    command = f"kubectl describe pods -l ray.io/cluster={ray_job.cluster}"
    return DesiredCondition(
        False, Reason.PODS_NOT_READY, f"Pods of the Ray cluster are not running: {pending_pods}. See `{command}`."
    )


def _summarize(message: str) -> str:
    """Return the run's own failure message if there is one, else beginning and end of KubeRay's, on one line."""
    if failures := _RUN_FAILED.findall(message):
        cause, text = failures[-1]
        return f"{text.strip().rstrip('.')} ({cause})"
    line = " ".join(message.split()).rstrip(".")
    if len(line) <= HEAD_CHARACTERS + TAIL_CHARACTERS:
        return line
    return f"{line[:HEAD_CHARACTERS]} … {line[-TAIL_CHARACTERS:]}"
