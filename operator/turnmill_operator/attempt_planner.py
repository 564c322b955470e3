"""Plans for the attempts of a job: start, suspend, resume, retry, complete and fail.

One file, though long: the order in which these cases are checked is the logic, and is read best in one place.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from zlib import crc32

from turnmill.core.retries import CLUSTER_RETRIES
from turnmill.jobs.job import JobSpec
from turnmill.jobs.status import ConditionType, JobProgress, JobStatus
from turnmill.jobs.team import TeamSettings
from turnmill_operator.conditions import name_taken, starting_conditions, suspended_conditions, way_out
from turnmill_operator.placement import place_job
from turnmill_operator.plan import Plan, last_attempt, owned_ray_jobs
from turnmill_operator.ray_job_status import (
    Failure,
    Stage,
    attempt_deadline,
    conditions_of,
    failure_of,
    is_finished,
    stage_of,
    timeout_failure,
)
from turnmill_operator.resources import Manifest, build_ray_job
from turnmill_operator.run_pods import with_failed_nodes
from turnmill_operator.status import (
    DISRUPTABLE_REASONS,
    NON_RETRYABLE_REASONS,
    DesiredCondition,
    DesiredStatus,
    Reason,
    State,
    build_status,
    is_condition_true,
)
from turnmill_operator.views import JobView, Observed, RayJobView

BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 10, 300
# Enough for pods to end and for the older job to get their devices; the spread parts the younger jobs.
GIVE_WAY_SECONDS, GIVE_WAY_SPREAD_SECONDS = 60, 30
# Time in which the loss of a pod ends a run: KubeRay must notice it, or the run must stop answering.
DISRUPTION_EFFECT = timedelta(minutes=15)
APPLY_RETRY_SECONDS, SHARED_CLUSTER_SECONDS = 60, 30


@dataclass(frozen=True, slots=True)
class AttemptPlanner:
    """Plans for a job that has not finished and is not being deleted."""

    view: JobView
    observed: Observed
    now: datetime

    def plan(self) -> Plan:
        """Return the plan for the job's current or next attempt."""
        current = self.current
        if current is None:
            return self._between_attempts()
        if self._is_counted_as_failed(current):
            return replace(self._between_attempts(), delete=(current, *self._older_than(current.attempt)))
        spec = self.spec
        stage = stage_of(current)
        if stage is Stage.SUCCEEDED:
            return self._complete(current)
        if (failure := failure_of(current)) is not None:
            return self._failed(failure, current)
        if spec is None:
            # The settings can no longer be read, but the run has its own copy of them.
            return self._under_way(current)
        if spec.suspend:
            return self._suspend(current, spec)
        if self._needs_resume(current):
            return self._resume(current, spec)
        if (failure := timeout_failure(current, self.view, self.observed, self.now)) is not None:
            return self._failed(failure, current)
        if self.observed.gives_way_to and stage is Stage.STARTING:
            return self._give_way(current)
        return self._under_way(current)

    @property
    def status(self) -> JobStatus:
        """The last written status."""
        return self.view.status

    @property
    def spec(self) -> JobSpec | None:
        """The job's spec; None if it cannot be read."""
        return self.view.job.spec if self.view.job else None

    @property
    def retries(self) -> int:
        """The number of failed attempts that may be followed by another."""
        return CLUSTER_RETRIES if self.spec is None or self.spec.retries is None else self.spec.retries

    @property
    def attempt(self) -> int:
        """The number of the last attempt."""
        return last_attempt(self.view, self.observed)

    @property
    def current(self) -> RayJobView | None:
        """The RayJob of the last attempt, unless it is being deleted."""
        ray_jobs = owned_ray_jobs(self.view, self.observed)
        return next((r for r in ray_jobs if r.attempt == self.attempt and not r.deleting), None)

    # Between attempts

    def _is_counted_as_failed(self, current: RayJobView) -> bool:
        """Return whether the attempt is already counted as failed and its RayJob only remains to be deleted."""
        return self.status.next_attempt_time is not None and current.attempt == self.status.attempt

    def _between_attempts(self) -> Plan:
        spec, attempt = self.spec, self.attempt
        if attempt > 0 and not self._is_last_attempt_over():
            deleted = Failure(
                Reason.RAY_JOB_DELETED, "its RayJob is gone, and nobody but the operator should delete it"
            )
            if spec is None or not spec.suspend:
                return self._failed(deleted, None)
        due = self.status.next_attempt_time
        if spec is not None and spec.suspend and (attempt > 0 or self._must_delete_to_stop(spec)):
            return self._report(State.SUSPENDED, suspended_conditions())
        if due is not None and self.now < due:
            return Plan(requeue_at=due)
        return self._start(attempt + 1)

    def _is_last_attempt_over(self) -> bool:
        """Return whether the last attempt is known to be over: it failed, or was suspended and its RayJob deleted."""
        return self.status.next_attempt_time is not None or self.status.state in (
            State.SUSPENDING,
            State.SUSPENDED,
            State.NOT_ADMITTED,
            State.QUEUED,
        )

    def _start(self, attempt: int, *, held: RayJobView | None = None) -> Plan:
        """Start an attempt, or report why it cannot start; it gets the RayJob that Kueue holds, if there is one."""
        suspended = self.spec is not None and self.spec.suspend
        ray_job = self._build_ray_job(
            attempt, suspend=suspended, name=held.name if held else None, held=held is not None
        )
        if isinstance(ray_job, DesiredCondition):
            return self._refuse(ray_job)
        if self.observed.apply_error:
            message = f"The API server refuses the RayJob: {self.observed.apply_error}. The operator tries again."
            retry_at = self.now + timedelta(seconds=APPLY_RETRY_SECONDS)
            return replace(self._refuse(DesiredCondition(False, Reason.RAY_JOB_REFUSED, message)), requeue_at=retry_at)
        if self.observed.blocked_by:
            return replace(
                self._wait_for_shared_cluster(), requeue_at=self.now + timedelta(seconds=SHARED_CLUSTER_SECONDS)
            )
        name = ray_job["metadata"]["name"]
        namesake = next((r for r in self.observed.ray_jobs if r.name == name), None)
        if namesake is not None and namesake.owner_uid != self.view.uid:
            return self._refuse(name_taken(namesake.name))
        plan = self._report(
            State.SUSPENDING if suspended else State.STARTING,
            {"Suspended": DesiredCondition(False, Reason.STOPPING)}
            if suspended
            else starting_conditions("The RayJob has been made."),
            attempt=attempt,
            cluster=None,
        )
        older = tuple(found for found in self._older_than(attempt) if found.name != name)
        return replace(plan, add_finalizer=self._needs_finalizer(), apply=(ray_job,), delete=older)

    def _wait_for_shared_cluster(self) -> Plan:
        """Wait for the team's shared cluster, which runs one job at a time."""
        message = (
            f"Job {self.observed.blocked_by} goes first on the team's shared Ray cluster, which runs one at a time. "
            "Wait for its end, or set spec.cluster to own."
        )
        conditions: Mapping[ConditionType, DesiredCondition] = {
            "ClusterReady": DesiredCondition(False, Reason.SHARED_CLUSTER_BUSY, message),
            "Running": DesiredCondition(False, Reason.WAITING_FOR_CLUSTER),
        }
        return self._report(State.QUEUED, conditions, next_attempt_time=self.status.next_attempt_time)

    def _needs_finalizer(self) -> bool:
        team = self.observed.team
        return isinstance(team, TeamSettings) and team.clean_up is not None and not self.view.has_finalizer

    def _build_ray_job(
        self, attempt: int, *, suspend: bool, started: bool | None = None, name: str | None = None, held: bool = False
    ) -> Manifest | DesiredCondition:
        placed = place_job(self.view, self.observed)
        if isinstance(placed, DesiredCondition):
            return placed
        team, placement = placed
        return build_ray_job(
            self.view,
            team,
            placement,
            attempt=attempt,
            suspend=suspend,
            started=not suspend if started is None else started,
            name=name,
            held=held,
        )

    def _refuse(self, admitted: DesiredCondition) -> Plan:
        """Report why no attempt can start; a change of the job, the team or the cluster triggers another try."""
        due = self.status.next_attempt_time
        return self._report(State.NOT_ADMITTED, {"Admitted": admitted}, next_attempt_time=due)

    # Suspending

    def _must_delete_to_stop(self, spec: JobSpec) -> bool:
        """Return whether only deletion stops the run: under a queue Kueue owns `suspend`; a shared cluster stays."""
        return spec.queue is not None or spec.cluster == "shared"

    def _can_keep_ray_job(self, current: RayJobView, spec: JobSpec) -> bool:
        """Return whether the RayJob may be suspended and resumed: it has its own cluster and no queue, now and later.

        The job may have changed since its RayJob was made. KubeRay would delete a shared cluster.
        """
        if self.observed.apply_error or current.queue or not current.own_cluster:
            return False
        return not self._must_delete_to_stop(spec)

    def _suspend(self, current: RayJobView, spec: JobSpec) -> Plan:
        stopping: Mapping[ConditionType, DesiredCondition] = {
            "Suspended": DesiredCondition(False, Reason.STOPPING, "The Ray cluster is being deleted.")
        }
        if not self._can_keep_ray_job(current, spec):
            return replace(self._report(State.SUSPENDING, stopping), delete=(current,))
        if current.deployment_status == "Suspended" and current.suspend:
            return replace(
                self._report(State.SUSPENDED, suspended_conditions()), apply=self._rebuilt(current, suspend=True)
            )
        if current.suspend:
            return self._report(State.SUSPENDING, stopping)
        ray_job = self._build_ray_job(current.attempt, suspend=True, started=current.started, name=current.name)
        if isinstance(ray_job, DesiredCondition):
            # Without a team there is nothing to build it from; deleting it stops the run as well.
            return replace(self._report(State.SUSPENDING, stopping), delete=(current,))
        return replace(self._report(State.SUSPENDING, stopping), apply=(ray_job,))

    def _needs_resume(self, current: RayJobView) -> bool:
        """Return whether a suspended RayJob is to be replaced: its user resumed the job, or Kueue evicted it.

        Kueue may be configured to hold RayJobs that name no queue, too.
        """
        # A RayJob that ran was evicted, also if it could not start again at once; any other waits for its quota.
        has_run = is_condition_true(self.status, "ClusterReady") or self.status.state == State.NOT_ADMITTED
        evicted = has_run and self.status.attempt == current.attempt
        return current.suspend and (current.suspended_by_us or evicted)

    def _resume(self, current: RayJobView, spec: JobSpec) -> Plan:
        """Start again, under a new number if the attempt has run, so that its remaining processes cannot write.

        A RayJob that Kueue evicted stays, as its Workload has a place in the queue; it gets the new number.
        """
        if current.held_by_queue and current.queue == (spec.queue or "") and current.own_cluster:
            return self._start(current.attempt + 1, held=current)
        if not current.started and self._can_keep_ray_job(current, spec):
            return self._start(current.attempt)
        return self._start(current.attempt + 1)

    def _rebuilt(self, current: RayJobView, *, suspend: bool) -> tuple[Manifest, ...]:
        """Return the RayJob built anew if the job has changed and the RayJob has never run."""
        if current.started:
            return ()
        ray_job = self._build_ray_job(current.attempt, suspend=suspend, name=current.name)
        if isinstance(ray_job, DesiredCondition):
            return ()
        changed = ray_job["metadata"]["annotations"]["turnmill.dev/spec-hash"] != current.spec_hash
        return (ray_job,) if changed else ()

    # Under way

    def _under_way(self, current: RayJobView) -> Plan:
        state, conditions = conditions_of(current, self.observed, self.status)
        deadline = attempt_deadline(current, self.view, self.observed.progress)
        plan = self._report(state, conditions, attempt=current.attempt, cluster=current.cluster or None)
        return replace(plan, delete=self._older_than(current.attempt), requeue_at=deadline)

    def _complete(self, current: RayJobView) -> Plan:
        progress = self._progress() or JobProgress()
        if self.spec is not None:
            steps = self.spec.training.steps
            # The last step always has a checkpoint, which the last reading of the progress may have missed.
            progress = progress.model_copy(update={"step": steps, "steps": steps, "checkpoint_step": steps or None})
        conditions: dict[ConditionType, DesiredCondition] = {
            "ClusterReady": DesiredCondition(False, Reason.RELEASED, "The run has ended."),
            "Running": DesiredCondition(False, Reason.ENDED, "The run has ended."),
            "Complete": DesiredCondition(True, Reason.REACHED_LAST_STEP, "The run has reached its last step."),
        }
        plan = self._report(
            State.COMPLETE, conditions, attempt=current.attempt, cluster=current.cluster or None, progress=progress
        )
        return replace(plan, delete=self._older_than(current.attempt))

    def _failed(self, failure: Failure, current: RayJobView | None) -> Plan:
        """Count the failed attempt; schedule another if retries are left and it would not fail the same way."""
        if self._is_disrupted(failure):
            return self._disrupted(failure, current)
        attempt, failed = self.attempt, self.status.failed_attempts + 1
        retries = self.retries
        message = f"Attempt {attempt} failed: {failure.message}"
        will_retry = failed <= retries and failure.reason not in NON_RETRYABLE_REASONS
        if will_retry:
            due = self.now + timedelta(seconds=min(MAX_BACKOFF_SECONDS, BACKOFF_SECONDS * 2 ** (failed - 1)))
            next_message = f"{message} Attempt {attempt + 1} starts from the last checkpoint at {due:%H:%M:%S} UTC."
            running = DesiredCondition(False, Reason.RETRYING, next_message)
            return self._retry(due, message, running, current, failed_attempts=failed)
        # A RayJob that has ended releases its cluster by itself; it stays as the record of the last attempt.
        delete = () if current is None or is_finished(current) else (current,)
        conditions: dict[ConditionType, DesiredCondition] = {
            "ClusterReady": DesiredCondition(False, Reason.RELEASED, message),
            "Running": DesiredCondition(False, Reason.ENDED, message),
            "Failed": DesiredCondition(True, failure.reason, f"{message} {way_out(failure, failed, retries)}"),
        }
        plan = self._report(State.FAILED, conditions, attempt=attempt, failed_attempts=failed)
        return replace(plan, delete=(*delete, *self._older_than(attempt)))

    def _is_disrupted(self, failure: Failure) -> bool:
        """Return whether Kubernetes took a pod away shortly before the attempt failed."""
        found = self.observed.disruption
        return failure.reason in DISRUPTABLE_REASONS and found is not None and self.now - found.at <= DISRUPTION_EFFECT

    def _disrupted(self, failure: Failure, current: RayJobView | None) -> Plan:
        """Schedule another attempt for one that Kubernetes disrupted, without counting it as failed."""
        assert self.observed.disruption is not None
        attempt, due = self.attempt, self.now + timedelta(seconds=BACKOFF_SECONDS)
        lost = self.observed.disruption.message
        message = f"Attempt {attempt} was disrupted by the loss of {lost}: {failure.message}"
        next_message = (
            f"{message} Attempt {attempt + 1} starts from the last checkpoint at {due:%H:%M:%S} UTC; the disruption "
            "does not count against spec.retries."
        )
        running = DesiredCondition(False, Reason.DISRUPTED, next_message)
        count = self.status.disrupted_attempts + 1
        return self._retry(due, message, running, current, disrupted_attempts=count)

    def _give_way(self, current: RayJobView) -> Plan:
        """Give the devices of an attempt that cannot start to an older job, without counting it as failed."""
        spread = crc32(f"{self.view.uid}/{self.attempt}".encode()) % GIVE_WAY_SPREAD_SECONDS
        due = self.now + timedelta(seconds=GIVE_WAY_SECONDS + spread)
        message = (
            f"Attempt {self.attempt} held a part of its devices, found no room for the rest, and gave way to the older "
            f"job {self.observed.gives_way_to}, which lacked them. Attempt {self.attempt + 1} starts at "
            f"{due:%H:%M:%S} UTC; this does not count against spec.retries."
        )
        return self._retry(due, message, DesiredCondition(False, Reason.GAVE_WAY, message), current)

    def revive(self) -> Plan:
        """Schedule another attempt for a job that has failed, and whose `retries` have been raised since."""
        message = (
            f"spec.retries was raised to {self.retries}: attempt {self.attempt + 1} starts from the last checkpoint."
        )
        return self._retry(
            self.now, "The last attempt has ended.", DesiredCondition(False, Reason.RETRYING, message), None
        )

    def _retry(
        self, due: datetime, released: str, running: DesiredCondition, current: RayJobView | None, **counts: int
    ) -> Plan:
        """Schedule another attempt, and delete the RayJob of this one, which has released its cluster."""
        conditions: dict[ConditionType, DesiredCondition] = {
            "ClusterReady": DesiredCondition(False, Reason.RELEASED, released),
            "Running": running,
        }
        nodes = with_failed_nodes(self.status.failed_nodes, self.observed.failed_nodes)
        plan = self._report(State.RETRYING, conditions, next_attempt_time=due, failed_nodes=nodes, **counts)
        delete = () if current is None else (current,)
        return replace(plan, delete=(*delete, *self._older_than(self.attempt)), requeue_at=due)

    # Common

    def _older_than(self, attempt: int) -> tuple[RayJobView, ...]:
        return tuple(r for r in owned_ray_jobs(self.view, self.observed) if r.attempt < attempt and not r.deleting)

    def _progress(self) -> JobProgress | None:
        return self.observed.progress.values or self.status.progress

    def _report(self, state: State, conditions: Mapping[ConditionType, DesiredCondition], **changes: Any) -> Plan:
        """Return a plan that writes the job's status, or an empty plan if the status is already up to date."""
        desired = DesiredStatus(
            state=state,
            conditions=conditions,
            attempt=self.attempt,
            failed_attempts=self.status.failed_attempts,
            disrupted_attempts=self.status.disrupted_attempts,
            failed_nodes=self.status.failed_nodes,
            cluster=self.status.cluster,
            progress=self._progress(),
        )
        status = build_status(
            replace(desired, **changes), before=self.status, generation=self.view.generation, now=self.now
        )
        return Plan(status=status if status != self.status else None)
