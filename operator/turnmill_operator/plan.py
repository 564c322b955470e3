"""The plan for one job: objects to apply, status to write, objects to delete."""

from dataclasses import dataclass
from datetime import datetime

from turnmill.jobs.status import JobStatus
from turnmill_operator.resources import Manifest
from turnmill_operator.views import JobView, Observed, RayJobView


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions, in the order of execution: finalizer on, apply, status, delete, finalizer off, delete the job."""

    add_finalizer: bool = False
    """Add our finalizer to the job, before any of its objects exists."""
    apply: tuple[Manifest, ...] = ()
    status: JobStatus | None = None
    """The status to write; None leaves it unchanged."""
    delete: tuple[RayJobView, ...] = ()
    remove_finalizer: bool = False
    delete_job: bool = False
    requeue_at: datetime | None = None
    """Time at which to reconcile again, even if nothing in the cluster changes."""


def owned_ray_jobs(view: JobView, observed: Observed) -> tuple[RayJobView, ...]:
    """Return the job's RayJobs, without those of an earlier job of the same name."""
    return tuple(ray_job for ray_job in observed.ray_jobs if ray_job.owner_uid == view.uid)


def last_attempt(view: JobView, observed: Observed) -> int:
    """Return the number of the last attempt, also if the status could not be written after it started."""
    return max([view.status.attempt, *(ray_job.attempt for ray_job in owned_ray_jobs(view, observed))])
