"""Views of Kubernetes objects: the few fields that the operator reads, parsed and frozen."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from pydantic import ValidationError

from turnmill.core.errors import SettingsError, first_line
from turnmill.jobs import AgentTrainingJob, JobError, parse_job
from turnmill.jobs.status import JobProgress, JobStatus
from turnmill.jobs.team import TeamSettings, parse_team
from turnmill.jobs.versions import known_fields
from turnmill_operator.gitops import is_kept
from turnmill_operator.pod_rules import DEFAULT_RULES, PodRules

RawObject = Mapping[str, Any]
"""An object as the API server returns it."""

JOB_LABEL, ATTEMPT_LABEL = "turnmill.dev/job", "turnmill.dev/attempt"
STARTED_ANNOTATION, SUSPENDED_ANNOTATION = "turnmill.dev/started", "turnmill.dev/suspended"
HASH_ANNOTATION = "turnmill.dev/spec-hash"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
JOB_UID_LABEL, PRIORITY_LABEL = "kueue.x-k8s.io/job-uid", "kueue.x-k8s.io/priority-class"
FINALIZER = "turnmill.dev/clean-up"
MANAGER = "turnmill.dev/operator"

log = logging.getLogger(__name__)


class ObjectKey(NamedTuple):
    """Namespace and name of an object."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class JobView:
    """An AgentTrainingJob: its spec, or the error in it, and its status."""

    key: ObjectKey
    uid: str
    generation: int
    version: int
    created_at: datetime
    job: AgentTrainingJob | None
    spec_error: str
    status: JobStatus
    is_managed: bool
    deleted_at: datetime | None
    has_finalizer: bool
    is_kept_by_gitops: bool = False
    """True if a GitOps tool applied it, which would create it again after a deletion."""

    @property
    def asks_for_shared_cluster(self) -> bool:
        """True if the spec asks for the team's shared cluster; the RayJobs show where the job runs."""
        return self.job is not None and self.job.spec.cluster == "shared"


@dataclass(frozen=True, slots=True)
class RayJobView:
    """A RayJob that the operator made for one attempt of a job."""

    name: str
    namespace: str
    job: str
    attempt: int
    version: int
    uid: str
    owner_uid: str
    created_at: datetime
    deleting: bool
    suspend: bool
    started: bool
    """True if it was ever unsuspended; otherwise its spec may still be changed."""
    suspended_by_us: bool
    """True if it was suspended for its job; otherwise by a queue."""
    spec_hash: str
    queue: str
    """Kueue's queue of the RayJob, whatever its job now says."""
    own_cluster: bool
    job_status: str
    deployment_status: str
    reason: str
    message: str
    start_time: datetime | None
    cluster: str
    head_ip: str
    cluster_ready: bool
    cluster_problem: str
    """Why KubeRay could not create a pod, such as a quota; empty if it could create all of them."""

    @property
    def held_by_queue(self) -> bool:
        """True if Kueue has suspended it: it waits for quota, or was evicted."""
        return self.suspend and not self.suspended_by_us


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Last progress that a run reported, and the time since when it does not answer."""

    values: JobProgress | None = None
    refused_since: datetime | None = None
    unreachable_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Disruption:
    """A pod that Kubernetes evicts, preempts, or deletes with its node."""

    at: datetime
    message: str
    """Name of the pod, and the reason in Kubernetes' own words."""


@dataclass(frozen=True, slots=True)
class CleanUpView:
    """The batch Job that deletes a run's data from the trajectory store."""

    finished: bool


@dataclass(frozen=True, slots=True)
class KubeRay:
    """Capabilities of the installed KubeRay, read from its schema; None in its place if it is not installed."""

    ray_tokens: bool = True
    """Whether it can require a token of clients of a Ray cluster (from 1.5.1 on)."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Observed state of the cluster that a job's desired state depends on."""

    team: TeamSettings | SettingsError | None = None
    """Settings of the team, or the error in them; None if the namespace has no team."""
    kuberay: KubeRay | None = field(default_factory=KubeRay)
    ray_jobs: tuple[RayJobView, ...] = ()
    """RayJobs that carry the job's name, including those of an earlier job of the same name."""
    progress: RunProgress = field(default_factory=RunProgress)
    pending_pods: str = ""
    """Reasons why pods of the cluster are not running; empty if there are none."""
    queue_message: str = ""
    """Reason why Kueue has not admitted the run, in Kueue's words; empty if it gives none."""
    gives_way_to: str = ""
    """Older job that lacks the devices which this job's attempt holds without being able to start; empty if none."""
    disruption: Disruption | None = None
    """Last disruption of a pod of the last attempt."""
    failed_nodes: tuple[str, ...] = ()
    """Nodes on which pods of the last attempt died."""
    clean_up: CleanUpView | None = None
    blocked_by: str = ""
    """Name of the job that the team's shared cluster runs first, as it runs one at a time; empty if none."""
    apply_error: str = ""
    """Reason why the API server rejected the last RayJob; empty if it did not."""


def job_view(raw: RawObject, known: JobView | None = None) -> JobView:
    """Parse an AgentTrainingJob; a spec of the same generation is taken from the `known` view."""
    metadata, spec = raw["metadata"], raw.get("spec") or {}
    resource = {
        "apiVersion": raw["apiVersion"],
        "kind": raw["kind"],
        "metadata": {name: metadata[name] for name in ("name", "namespace", "labels") if name in metadata},
        "spec": spec,
    }
    if known is not None and (known.uid, known.generation) == (metadata["uid"], metadata["generation"]):
        # The same generation is the same spec.
        job, spec_error = known.job, known.spec_error
    else:
        job, spec_error = _parse_spec(resource)
    return JobView(
        key=key_of(raw),
        uid=metadata["uid"],
        generation=int(metadata["generation"]),
        version=version_of(raw),
        created_at=datetime.fromisoformat(metadata["creationTimestamp"]),
        job=job,
        spec_error=spec_error,
        status=_status(raw.get("status")),
        is_managed=spec.get("managedBy", MANAGER) == MANAGER,
        deleted_at=_time(metadata.get("deletionTimestamp")),
        has_finalizer=FINALIZER in metadata.get("finalizers", ()),
        is_kept_by_gitops=is_kept(metadata),
    )


def _parse_spec(resource: RawObject) -> tuple[AgentTrainingJob | None, str]:
    try:
        return parse_job(resource), ""
    except JobError as error:
        known, newer = known_fields(resource)
        if not newer:
            return None, str(error)
    log.warning("Job has fields that only a newer operator knows", extra={"fields": newer})
    return _parse_spec(known)


def ray_job_view(raw: RawObject) -> RayJobView:
    """Parse a RayJob."""
    metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status") or {}
    labels, annotations = metadata.get("labels", {}), metadata.get("annotations", {})
    cluster = status.get("rayClusterStatus") or {}
    return RayJobView(
        name=metadata["name"],
        namespace=metadata["namespace"],
        job=labels.get(JOB_LABEL, ""),
        attempt=_number(labels.get(ATTEMPT_LABEL)),
        version=version_of(raw),
        uid=metadata.get("uid", ""),
        owner_uid=next((owner["uid"] for owner in metadata.get("ownerReferences", ()) if owner.get("controller")), ""),
        created_at=datetime.fromisoformat(metadata["creationTimestamp"]),
        deleting="deletionTimestamp" in metadata,
        suspend=bool(spec.get("suspend")),
        started=annotations.get(STARTED_ANNOTATION) == "true",
        # Earlier operators did not set it; RayJobs outside of queues were suspended by them alone.
        suspended_by_us=annotations.get(SUSPENDED_ANNOTATION, "false" if QUEUE_LABEL in labels else "true") == "true",
        spec_hash=annotations.get(HASH_ANNOTATION, ""),
        queue=labels.get(QUEUE_LABEL, ""),
        own_cluster="clusterSelector" not in spec,
        job_status=status.get("jobStatus") or "",
        deployment_status=status.get("jobDeploymentStatus") or "",
        reason=status.get("reason") or "",
        message=status.get("message") or "",
        start_time=_time(status.get("startTime")),
        cluster=status.get("rayClusterName") or "",
        head_ip=(cluster.get("head") or {}).get("podIP") or "",
        cluster_ready=cluster.get("state") == "ready" or bool(status.get("dashboardURL")),
        cluster_problem=_replica_failure(cluster),
    )


def _replica_failure(cluster: RawObject) -> str:
    """Return the message of a Ray cluster's condition `ReplicaFailure`; empty if it is not true."""
    for found in cluster.get("conditions") or ():
        if found["type"] == "ReplicaFailure" and found["status"] == "True":
            # KubeRay writes the reason and the error as two lines.
            return ": ".join(str(found.get("message") or found.get("reason") or "").splitlines())
    return ""


def team_view(raw: RawObject, rules: PodRules = DEFAULT_RULES) -> TeamSettings | SettingsError:
    """Parse the team's settings in a ConfigMap; return the error if they cannot be read, or ask for too much."""
    try:
        team = parse_team(raw.get("data") or {})
        rules.check(team)
        return team
    except SettingsError as error:
        return error


def clean_up_view(raw: RawObject) -> CleanUpView:
    """Parse the clean-up Job. A failed one counts as finished, as the remaining data in the store expires."""
    conditions = (raw.get("status") or {}).get("conditions", ())
    ends = [found for found in conditions if found["type"] in ("Complete", "Failed") and found["status"] == "True"]
    return CleanUpView(finished=bool(ends))


def key_of(raw: RawObject) -> ObjectKey:
    """Return the key of an object."""
    return ObjectKey(raw["metadata"]["namespace"], raw["metadata"]["name"])


def version_of(raw: RawObject) -> int:
    """Return the resource version of an object as a number that grows with every change."""
    return int(raw["metadata"]["resourceVersion"])


def _status(raw: RawObject | None) -> JobStatus:
    try:
        return JobStatus.model_validate_json(json.dumps(raw or {}))
    except ValidationError as error:
        # Another version of the operator wrote it. Only the counters matter; the rest is observed again.
        log.warning("Status cannot be read", extra={"problem": first_line(error)})
        known = {name: (raw or {}).get(name, 0) for name in ("attempt", "failedAttempts")}
        return JobStatus(attempt=_number(known["attempt"]), failed_attempts=_number(known["failedAttempts"]))


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _number(text: str | int | None) -> int:
    try:
        return int(text or 0)
    except (TypeError, ValueError):
        return 0
