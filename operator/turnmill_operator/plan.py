"""What should be: the pure heart of the operator. Job, observations and time in; resources and status out."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from turnmill.core.errors import SettingsError
from turnmill.jobs.job import JobSpec
from turnmill.jobs.status import ConditionType, JobProgress, JobStatus
from turnmill.jobs.team import TeamSettings
from turnmill_operator import outcome
from turnmill_operator.outcome import Failure, Stage
from turnmill_operator.placement import Placement, place
from turnmill_operator.resources import Manifest, build_clean_up, build_ray_job, ray_job_name
from turnmill_operator.status import (
    FINAL_REASONS,
    OWN_VERDICTS,
    Finding,
    Reason,
    Report,
    State,
    build_status,
    condition,
    ended_at,
    holds,
)
from turnmill_operator.views import JobView, Observed, RayJobView

# No watch tells of clean-ups.
CLEAN_UP_LIMIT, CLEAN_UP_LOOK = timedelta(seconds=120), timedelta(seconds=2)
BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 10, 300
REFUSED_SECONDS, AHEAD_SECONDS = 60, 30


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done, in this order: finalizer on, apply, status, delete, finalizer off, the job itself."""

    hold: bool = False
    """Put our finalizer on the job, before anything of it exists."""
    apply: tuple[Manifest, ...] = ()
    status: JobStatus | None = None
    """None leaves it as it is."""
    delete: tuple[RayJobView, ...] = ()
    let_go: bool = False
    """Take our finalizer off."""
    delete_job: bool = False
    check_again: datetime | None = None
    """When time alone changes what should be."""


def desired(view: JobView, observed: Observed, now: datetime) -> Plan:
    """What should be of one job. Running it twice, or late, or after a restart leads to the same end."""
    if not view.ours:
        return Plan()
    if view.deleted_at is not None:
        return _deleted(view, observed, now)
    if ended_at(view.status) is not None:
        return _ended(view, observed, now)
    return _Course(view, observed, now).plan()


def owned(view: JobView, observed: Observed) -> tuple[RayJobView, ...]:
    """The job's RayJobs, without those of a namesake before it."""
    return tuple(found for found in observed.ray_jobs if found.owner_uid == view.uid)


def last_attempt(view: JobView, observed: Observed) -> int:
    """The number of the last attempt, whether or not the status could be written after it started."""
    return max([view.status.attempt, *(found.attempt for found in owned(view, observed))])


def _deleted(view: JobView, observed: Observed, now: datetime) -> Plan:
    """Stop the run, empty its part of the store, then let the job go; all of it within a limit."""
    assert view.deleted_at is not None
    if not view.has_finalizer:
        return Plan()
    limit = view.deleted_at + CLEAN_UP_LIMIT
    ray_jobs = owned(view, observed)
    clean_up = observed.team.clean_up if isinstance(observed.team, TeamSettings) else None
    finished = not ray_jobs and (clean_up is None or (observed.clean_up is not None and observed.clean_up.finished))
    if finished or now >= limit:
        return Plan(let_go=True)
    status = _deleting_status(view, now)
    if ray_jobs:
        return Plan(status=status, delete=tuple(r for r in ray_jobs if not r.deleting), check_again=limit)
    assert clean_up is not None
    apply = () if observed.clean_up is not None else (build_clean_up(view, clean_up),)
    return Plan(apply=apply, status=status, check_again=min(limit, now + CLEAN_UP_LOOK))


def _deleting_status(view: JobView, now: datetime) -> JobStatus | None:
    status = view.status.model_copy(update={"state": State.DELETING, "observed_generation": view.generation})
    return status if status != view.status else None


def _ended(view: JobView, observed: Observed, now: datetime) -> Plan:
    """Nothing changes any more; where the job has a time to live, it goes when that is over."""
    attempt = last_attempt(view, observed)
    failed = condition(view.status, "Failed")
    # The status was written first: what was to be deleted with it may still be there.
    left = failed is not None and failed.reason in OWN_VERDICTS
    delete = tuple(
        found
        for found in owned(view, observed)
        if not found.deleting and (found.attempt < attempt or (left and not outcome.is_over(found)))
    )
    ttl = view.job.spec.ttl_seconds_after_finished if view.job else None
    end = ended_at(view.status)
    if ttl is None or end is None:
        return Plan(delete=delete)
    over = end + timedelta(seconds=ttl)
    return Plan(delete=delete, delete_job=now >= over, check_again=over if now < over else None)


@dataclass(frozen=True, slots=True)
class _Course:
    """A job that is under way, or about to be."""

    view: JobView
    observed: Observed
    now: datetime

    def plan(self) -> Plan:
        """What should be."""
        current = self.current
        if current is None:
            return self._between_attempts()
        if self._is_counted(current):
            return replace(self._between_attempts(), delete=(current, *self._older_than(current.attempt)))
        spec = self.spec
        stage = outcome.stage_of(current)
        if stage is Stage.SUCCEEDED:
            return self._complete(current)
        if (failure := outcome.failure_of(current)) is not None:
            return self._failed(failure, current)
        if spec is None:
            # Its settings cannot be read any more, but the run has its own copy of them.
            return self._on_course(current)
        if spec.suspend:
            return self._suspend(current, spec)
        if self._is_left_suspended(current):
            return self._resume(current, spec)
        if (failure := outcome.overdue(current, self.view, self.observed.progress, self.now)) is not None:
            return self._failed(failure, current)
        return self._on_course(current)

    @property
    def status(self) -> JobStatus:
        """The status as it was."""
        return self.view.status

    @property
    def spec(self) -> JobSpec | None:
        """What the job asks for."""
        return self.view.job.spec if self.view.job else None

    @property
    def attempt(self) -> int:
        """The last attempt."""
        return last_attempt(self.view, self.observed)

    @property
    def current(self) -> RayJobView | None:
        """The RayJob of the last attempt, unless it is going already."""
        found = [r for r in owned(self.view, self.observed) if r.attempt == self.attempt and not r.deleting]
        return found[0] if found else None

    # Between attempts

    def _is_counted(self, current: RayJobView) -> bool:
        """Whether the attempt has been counted as failed, and its RayJob only waits to be deleted."""
        return self.status.next_attempt_time is not None and current.attempt == self.status.attempt

    def _between_attempts(self) -> Plan:
        spec, attempt = self.spec, self.attempt
        if attempt > 0 and not self._is_settled():
            lost = Failure(Reason.RAY_JOB_DELETED, "its RayJob is gone, and nobody but the operator should delete it")
            if spec is None or not spec.suspend:
                return self._failed(lost, None)
        due = self.status.next_attempt_time
        if spec is not None and spec.suspend and (attempt > 0 or self._is_stopped_by_deletion(spec)):
            return self._report(State.SUSPENDED, _suspended())
        if due is not None and self.now < due:
            return Plan(check_again=due)
        return self._start(attempt + 1)

    def _is_settled(self) -> bool:
        """Whether the last attempt is known to be over: it failed, or it was suspended and its RayJob deleted."""
        return self.status.next_attempt_time is not None or self.status.state in (
            State.SUSPENDING,
            State.SUSPENDED,
            State.NOT_ADMITTED,
            State.QUEUED,
        )

    def _start(self, attempt: int) -> Plan:
        """Start an attempt; the job says so, or why it cannot."""
        made = self._ray_job(attempt, suspend=self.spec is not None and self.spec.suspend)
        if isinstance(made, Finding):
            return self._refuse(made)
        if self.observed.refusal:
            message = f"The API server does not take the RayJob: {self.observed.refusal}. It is tried again."
            again = self.now + timedelta(seconds=REFUSED_SECONDS)
            return replace(self._refuse(Finding(False, Reason.RAY_JOB_REFUSED, message)), check_again=again)
        if self.observed.ahead:
            return replace(self._wait_in_line(), check_again=self.now + timedelta(seconds=AHEAD_SECONDS))
        namesake = next(
            (r for r in self.observed.ray_jobs if r.name == ray_job_name(self.view.key.name, attempt)), None
        )
        if namesake is not None and namesake.owner_uid != self.view.uid:
            return self._refuse(_name_taken(namesake.name))
        suspended = self.spec is not None and self.spec.suspend
        report = self._report(
            State.SUSPENDING if suspended else State.STARTING,
            {"Suspended": Finding(False, Reason.STOPPING)} if suspended else _starting("The RayJob has been made."),
            attempt=attempt,
            cluster=None,
        )
        return replace(report, hold=self._needs_hold(), apply=(made,), delete=self._older_than(attempt))

    def _wait_in_line(self) -> Plan:
        """One run at a time on the team's shared cluster: two would take each other's rows."""
        message = (
            f"Job {self.observed.ahead} goes first on the team's shared Ray cluster, which runs one at a time. "
            "Wait for its end, or set spec.cluster to own."
        )
        findings: Mapping[ConditionType, Finding] = {
            "ClusterReady": Finding(False, Reason.SHARED_CLUSTER_BUSY, message),
            "Running": Finding(False, Reason.WAITING_FOR_CLUSTER),
        }
        return self._report(State.QUEUED, findings, next_attempt_time=self.status.next_attempt_time)

    def _needs_hold(self) -> bool:
        team = self.observed.team
        return isinstance(team, TeamSettings) and team.clean_up is not None and not self.view.has_finalizer

    def _ray_job(self, attempt: int, *, suspend: bool, started: bool | None = None) -> Manifest | Finding:
        placed = self._placed()
        if isinstance(placed, Finding):
            return placed
        team, placement = placed
        kuberay = self.observed.kuberay
        assert kuberay is not None
        return build_ray_job(
            self.view,
            team,
            placement,
            attempt=attempt,
            suspend=suspend,
            started=not suspend if started is None else started,
            ray_tokens=kuberay.ray_tokens,
        )

    def _placed(self) -> tuple[TeamSettings, Placement] | Finding:
        """What the team gives to the job, or why it cannot."""
        if self.view.job is None:
            return Finding(False, Reason.INVALID_SPEC, f"{self.view.problems} Correct it with kubectl apply.")
        if self.observed.kuberay is None:
            message = "The cluster does not serve ray.io/v1. Install KubeRay 1.4 or later."
            return Finding(False, Reason.NO_KUBERAY, message)
        team = self.observed.team
        if team is None:
            namespace = self.view.key.namespace
            message = f"Namespace {namespace} has no ConfigMap turnmill-team. Install the chart turnmill-team there."
            return Finding(False, Reason.NO_TEAM, message)
        if isinstance(team, SettingsError):
            return Finding(False, Reason.BROKEN_TEAM, str(team))
        placement = place(self.view.job.spec, team)
        if isinstance(placement, Finding):
            return placement
        return team, placement

    def _refuse(self, finding: Finding) -> Plan:
        """Say why the next attempt cannot start; a change of the job, the team or the cluster brings us here again."""
        due = self.status.next_attempt_time
        return self._report(State.NOT_ADMITTED, {"Admitted": finding}, next_attempt_time=due)

    # Suspending

    def _is_stopped_by_deletion(self, spec: JobSpec) -> bool:
        """Whether nobody but us can stop the run: Kueue owns `suspend` under a queue, and shared clusters stay."""
        return spec.queue is not None or spec.cluster == "shared"

    def _keeps_its_ray_job(self, current: RayJobView, spec: JobSpec) -> bool:
        """Whether its RayJob may stay: it is on a cluster of its own and in no queue, and it is to be the same again.

        The RayJob may be of another kind than its job asks for by now. KubeRay would delete a shared cluster.
        """
        if self.observed.refusal or current.queue or not current.own_cluster:
            return False
        return not self._is_stopped_by_deletion(spec)

    def _suspend(self, current: RayJobView, spec: JobSpec) -> Plan:
        stopping: Mapping[ConditionType, Finding] = {
            "Suspended": Finding(False, Reason.STOPPING, "The Ray cluster is being deleted.")
        }
        if not self._keeps_its_ray_job(current, spec):
            return replace(self._report(State.SUSPENDING, stopping), delete=(current,))
        if current.deployment_status == "Suspended" and current.suspend:
            return replace(self._report(State.SUSPENDED, _suspended()), apply=self._renewed(current, suspend=True))
        if current.suspend:
            return self._report(State.SUSPENDING, stopping)
        made = self._ray_job(current.attempt, suspend=True, started=current.started)
        if isinstance(made, Finding):
            # Without a team there is nothing to build it from; gone it is stopped as well.
            return replace(self._report(State.SUSPENDING, stopping), delete=(current,))
        return replace(self._report(State.SUSPENDING, stopping), apply=(made,))

    def _is_left_suspended(self, current: RayJobView) -> bool:
        """Whether another RayJob is due: the job was resumed by its user, or evicted by Kueue.

        Kueue holds RayJobs that have no queue, too, where it is told to.
        """
        # One that ran has been evicted, also where it could not start again at once; any other waits for its quota.
        has_run = holds(self.status, "ClusterReady") or self.status.state == State.NOT_ADMITTED
        return current.suspend and (current.suspended_by_us or has_run)

    def _resume(self, current: RayJobView, spec: JobSpec) -> Plan:
        """Carry on: under a number of its own where the attempt has run, so that what is left of it cannot write."""
        if not current.started and self._keeps_its_ray_job(current, spec):
            return self._start(current.attempt)
        return self._start(current.attempt + 1)

    def _renewed(self, current: RayJobView, *, suspend: bool) -> tuple[Manifest, ...]:
        """The RayJob anew where the job has changed before it ever ran."""
        if current.started:
            return ()
        made = self._ray_job(current.attempt, suspend=suspend)
        if isinstance(made, Finding):
            return ()
        changed = made["metadata"]["annotations"]["turnmill.dev/spec-hash"] != current.spec_hash
        return (made,) if changed else ()

    # Under way

    def _on_course(self, current: RayJobView) -> Plan:
        state, findings = outcome.findings_of(current, self.observed, self.status)
        check = outcome.next_check(current, self.view, self.observed.progress)
        report = self._report(state, findings, attempt=current.attempt, cluster=current.cluster or None)
        return replace(report, delete=self._older_than(current.attempt), check_again=check)

    def _complete(self, current: RayJobView) -> Plan:
        progress = self._progress() or JobProgress()
        if self.spec is not None:
            steps = self.spec.training.steps
            # The last step always has a checkpoint; who read the progress last may have missed it.
            progress = progress.model_copy(update={"step": steps, "steps": steps, "checkpoint_step": steps})
        findings: dict[ConditionType, Finding] = {
            "ClusterReady": Finding(False, Reason.RELEASED, "The run has ended."),
            "Running": Finding(False, Reason.ENDED, "The run has ended."),
            "Complete": Finding(True, Reason.REACHED_LAST_STEP, "The run has reached its last step."),
        }
        report = self._report(
            State.COMPLETE, findings, attempt=current.attempt, cluster=current.cluster or None, progress=progress
        )
        return replace(report, delete=self._older_than(current.attempt))

    def _failed(self, failure: Failure, current: RayJobView | None) -> Plan:
        """Count the attempt; another one starts after a while, unless there is none left or it would fail the same."""
        attempt, failed = self.attempt, self.status.failed_attempts + 1
        retries = self.spec.retries if self.spec else 0
        message = f"Attempt {attempt} failed: {failure.message}"
        again = failed <= retries and failure.reason not in FINAL_REASONS
        # A RayJob that has ended lets go of its cluster by itself; it stays as the record of the last attempt.
        kept = current is not None and not again and outcome.is_over(current)
        delete = () if current is None or kept else (current,)
        if again:
            due = self.now + timedelta(seconds=min(MAX_BACKOFF_SECONDS, BACKOFF_SECONDS * 2 ** (failed - 1)))
            text = f"{message} Attempt {attempt + 1} starts from the last checkpoint at {due:%H:%M:%S} UTC."
            findings: dict[ConditionType, Finding] = {
                "ClusterReady": Finding(False, Reason.RELEASED, message),
                "Running": Finding(False, Reason.RETRYING, text),
            }
            report = self._report(
                State.RETRYING, findings, attempt=attempt, failed_attempts=failed, next_attempt_time=due
            )
            return replace(report, delete=(*delete, *self._older_than(attempt)), check_again=due)
        findings = {
            "ClusterReady": Finding(False, Reason.RELEASED, message),
            "Running": Finding(False, Reason.ENDED, message),
            "Failed": Finding(True, failure.reason, f"{message} {_way_out(failure, failed, retries)}"),
        }
        report = self._report(State.FAILED, findings, attempt=attempt, failed_attempts=failed)
        return replace(report, delete=(*delete, *self._older_than(attempt)))

    # Common

    def _older_than(self, attempt: int) -> tuple[RayJobView, ...]:
        return tuple(r for r in owned(self.view, self.observed) if r.attempt < attempt and not r.deleting)

    def _progress(self) -> JobProgress | None:
        return self.observed.progress.values or self.status.progress

    def _report(self, state: State, findings: Mapping[ConditionType, Finding], **changes: Any) -> Plan:
        """A plan that says where the job stands; without a status where it says so already."""
        report = Report(
            state=state,
            findings=findings,
            attempt=self.attempt,
            failed_attempts=self.status.failed_attempts,
            cluster=self.status.cluster,
            progress=self._progress(),
        )
        status = build_status(
            replace(report, **changes), before=self.status, generation=self.view.generation, now=self.now
        )
        return Plan(status=status if status != self.status else None)


def _suspended() -> Mapping[ConditionType, Finding]:
    message = "No Ray cluster is held. Set spec.suspend to false to carry on from the last checkpoint."
    return {"Suspended": Finding(True, Reason.SUSPENDED_BY_SPEC, message)}


def _starting(message: str) -> Mapping[ConditionType, Finding]:
    return {
        "ClusterReady": Finding(False, Reason.WAITING_FOR_PODS, message),
        "Running": Finding(False, Reason.WAITING_FOR_CLUSTER),
    }


def _name_taken(name: str) -> Finding:
    message = (
        f"RayJob {name} belongs to something else, perhaps to a job of the same name that is still going. "
        "Wait until it is gone, or delete it."
    )
    return Finding(False, Reason.NAME_TAKEN, message)


def _way_out(failure: Failure, failed: int, retries: int) -> str:
    if failure.reason in FINAL_REASONS:
        return "Another attempt would end the same way: correct the job under another name."
    if retries:
        return f"All {retries} retries are used. The run's folder has its logs; a job of another name starts anew."
    return "Set spec.retries in the next job to carry on from the last checkpoint by itself."
