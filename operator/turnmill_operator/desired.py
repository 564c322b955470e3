"""The desired state of a job: a pure function of the job, of what was observed and of the time."""

from datetime import datetime, timedelta

from turnmill.jobs.status import JobStatus
from turnmill.jobs.team import TeamSettings
from turnmill_operator.attempt_planner import AttemptPlanner
from turnmill_operator.plan import Plan, last_attempt, owned_ray_jobs
from turnmill_operator.ray_job_status import is_finished
from turnmill_operator.resources import build_clean_up
from turnmill_operator.status import (
    NON_RETRYABLE_REASONS,
    OPERATOR_DECIDED_REASONS,
    State,
    find_condition,
    finished_at,
)
from turnmill_operator.views import JobView, Observed

# Clean-up Jobs are not watched, but polled.
CLEAN_UP_LIMIT, CLEAN_UP_POLL = timedelta(seconds=120), timedelta(seconds=2)


def desired(view: JobView, observed: Observed, now: datetime) -> Plan:
    """Return the plan for one job. Planning twice, late or after a restart leads to the same state."""
    if not view.is_managed:
        return Plan()
    if view.deleted_at is not None:
        return _deleted(view, observed, now)
    planner = AttemptPlanner(view, observed, now)
    if finished_at(view.status) is not None:
        return planner.revive() if _may_continue(view, planner.retries) else _finished(view, observed, now)
    return planner.plan()


def _may_continue(view: JobView, retries: int) -> bool:
    """Return whether a job that failed for lack of retries has some left since, because they were raised."""
    failed = find_condition(view.status, "Failed")
    return (
        view.job is not None
        and failed is not None
        and failed.status == "True"
        and failed.reason not in NON_RETRYABLE_REASONS
        and view.status.failed_attempts <= retries
    )


def _deleted(view: JobView, observed: Observed, now: datetime) -> Plan:
    """Stop the run, delete its data in the store, then remove the finalizer; all of it within a time limit."""
    assert view.deleted_at is not None
    if not view.has_finalizer:
        return Plan()
    deadline = view.deleted_at + CLEAN_UP_LIMIT
    ray_jobs = owned_ray_jobs(view, observed)
    clean_up = observed.team.clean_up if isinstance(observed.team, TeamSettings) else None
    is_clean = not ray_jobs and (clean_up is None or (observed.clean_up is not None and observed.clean_up.finished))
    if is_clean or now >= deadline:
        return Plan(remove_finalizer=True)
    status = _deleting_status(view, now)
    if ray_jobs:
        return Plan(status=status, delete=tuple(r for r in ray_jobs if not r.deleting), requeue_at=deadline)
    assert clean_up is not None
    apply = () if observed.clean_up is not None else (build_clean_up(view, clean_up),)
    return Plan(apply=apply, status=status, requeue_at=min(deadline, now + CLEAN_UP_POLL))


def _deleting_status(view: JobView, now: datetime) -> JobStatus | None:
    status = view.status.model_copy(update={"state": State.DELETING, "observed_generation": view.generation})
    return status if status != view.status else None


def _finished(view: JobView, observed: Observed, now: datetime) -> Plan:
    """Delete what is left over, and the job itself once its time to live has passed."""
    attempt = last_attempt(view, observed)
    failed = find_condition(view.status, "Failed")
    # The status is written before RayJobs are deleted: one that was to be deleted may still be there.
    may_still_run = failed is not None and failed.reason in OPERATOR_DECIDED_REASONS
    delete = tuple(
        ray_job
        for ray_job in owned_ray_jobs(view, observed)
        if not ray_job.deleting and (ray_job.attempt < attempt or (may_still_run and not is_finished(ray_job)))
    )
    status = _ended_status(view)
    ttl = view.job.spec.ttl_seconds_after_finished if view.job else None
    ended_at = finished_at(view.status)
    if ttl is None or ended_at is None:
        return Plan(delete=delete, status=status)
    expires_at = ended_at + timedelta(seconds=ttl)
    if now < expires_at:
        return Plan(delete=delete, status=status, requeue_at=expires_at)
    if view.is_kept_by_gitops:
        # It would be created again, and trained again: only its objects go.
        return Plan(
            delete=tuple(found for found in owned_ray_jobs(view, observed) if not found.deleting), status=status
        )
    return Plan(delete=delete, delete_job=True)


def _ended_status(view: JobView) -> JobStatus | None:
    """Return the status of an ended job with the generation that was observed; None if it has it already."""
    if view.status.observed_generation == view.generation:
        return None
    return view.status.model_copy(update={"observed_generation": view.generation})
