"""What the operator reads of an object: a few frozen fields instead of the whole."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from pydantic import ValidationError

from turnmill.core.errors import SettingsError
from turnmill.jobs import AgentTrainingJob, JobError, parse_job
from turnmill.jobs.status import JobProgress, JobStatus
from turnmill.jobs.team import TeamSettings, parse_team
from turnmill.jobs.versions import known_fields

Raw = Mapping[str, Any]

JOB_LABEL, ATTEMPT_LABEL = "turnmill.dev/job", "turnmill.dev/attempt"
STARTED_ANNOTATION = "turnmill.dev/started"
SUSPENDED_ANNOTATION = "turnmill.dev/suspended"
HASH_ANNOTATION = "turnmill.dev/spec-hash"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
FINALIZER = "turnmill.dev/clean-up"
MANAGER = "turnmill.dev/operator"

log = logging.getLogger(__name__)


class Key(NamedTuple):
    """A job in the cluster."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class JobView:
    """An AgentTrainingJob: its settings, or why they cannot be read, and its status."""

    key: Key
    uid: str
    generation: int
    version: int
    created_at: datetime
    job: AgentTrainingJob | None
    problems: str
    status: JobStatus
    ours: bool
    deleted_at: datetime | None
    has_finalizer: bool

    @property
    def asks_for_shared_cluster(self) -> bool:
        """Whether it is to run on its team's shared cluster; where it runs, RayJobs tell."""
        return self.job is not None and self.job.spec.cluster == "shared"


@dataclass(frozen=True, slots=True)
class RayJobView:
    """A RayJob that the operator made for one attempt of a job."""

    name: str
    namespace: str
    job: str
    attempt: int
    version: int
    owner_uid: str
    created_at: datetime
    deleting: bool
    suspend: bool
    started: bool
    """Whether it was ever let run; one that waits since its birth may still be changed."""
    suspended_by_us: bool
    """Whether its job asked for that; otherwise a queue holds it."""
    spec_hash: str
    queue: str
    """The queue of Kueue's that it is in, whatever its job says by now."""
    own_cluster: bool
    job_status: str
    deployment_status: str
    reason: str
    message: str
    start_time: datetime | None
    cluster: str
    head_ip: str
    cluster_ready: bool
    pods_wanted: int
    pods_ready: int


@dataclass(frozen=True, slots=True)
class Progress:
    """What a run last told of itself, and since when it does not answer."""

    values: JobProgress | None = None
    refused_since: datetime | None = None
    silent_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class CleanUpView:
    """The Job that deletes what a run left in the trajectory store."""

    finished: bool


@dataclass(frozen=True, slots=True)
class KubeRay:
    """What the installed KubeRay can do, read from its schema; None in its place where there is none."""

    ray_tokens: bool = True


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything outside a job that its next state follows from."""

    team: TeamSettings | SettingsError | None = None
    """None where the namespace has no team."""
    kuberay: KubeRay | None = field(default_factory=KubeRay)
    ray_jobs: tuple[RayJobView, ...] = ()
    """RayJobs that carry the job's name, those of a namesake before it included."""
    progress: Progress = field(default_factory=Progress)
    waiting: str = ""
    """Why pods of the cluster do not run."""
    clean_up: CleanUpView | None = None
    ahead: str = ""
    """The job that the team's shared cluster serves first; it runs one at a time."""
    refusal: str = ""
    """Why the API server did not take the RayJob that we last wanted."""


def job_view(raw: Raw, known: JobView | None = None) -> JobView:
    """An AgentTrainingJob as the API server gives it; of one that is known, only what changed is read anew."""
    metadata, spec = raw["metadata"], raw.get("spec") or {}
    resource = {
        "apiVersion": raw["apiVersion"],
        "kind": raw["kind"],
        "metadata": {name: metadata[name] for name in ("name", "namespace", "labels") if name in metadata},
        "spec": spec,
    }
    if known is not None and (known.uid, known.generation) == (metadata["uid"], metadata["generation"]):
        # The same generation is the same spec.
        job, problems = known.job, known.problems
    else:
        job, problems = _parsed(resource)
    return JobView(
        key=key_of(raw),
        uid=metadata["uid"],
        generation=int(metadata["generation"]),
        version=version_of(raw),
        created_at=datetime.fromisoformat(metadata["creationTimestamp"]),
        job=job,
        problems=problems,
        status=_status(raw.get("status")),
        ours=spec.get("managedBy", MANAGER) == MANAGER,
        deleted_at=_time(metadata.get("deletionTimestamp")),
        has_finalizer=FINALIZER in metadata.get("finalizers", ()),
    )


def _parsed(resource: Raw) -> tuple[AgentTrainingJob | None, str]:
    try:
        return parse_job(resource), ""
    except JobError as error:
        known, newer = known_fields(resource)
        if not newer:
            return None, str(error)
    log.warning("Job has fields that only a newer operator knows", extra={"fields": newer})
    return _parsed(known)


def ray_job_view(raw: Raw) -> RayJobView:
    """A RayJob as the API server gives it."""
    metadata, spec, status = raw["metadata"], raw["spec"], raw.get("status") or {}
    labels, annotations = metadata.get("labels", {}), metadata.get("annotations", {})
    cluster = status.get("rayClusterStatus") or {}
    return RayJobView(
        name=metadata["name"],
        namespace=metadata["namespace"],
        job=labels.get(JOB_LABEL, ""),
        attempt=_number(labels.get(ATTEMPT_LABEL)),
        version=version_of(raw),
        owner_uid=next((owner["uid"] for owner in metadata.get("ownerReferences", ()) if owner.get("controller")), ""),
        created_at=datetime.fromisoformat(metadata["creationTimestamp"]),
        deleting="deletionTimestamp" in metadata,
        suspend=bool(spec.get("suspend")),
        started=annotations.get(STARTED_ANNOTATION) == "true",
        # Operators before this one did not say; outside of queues nobody else suspended theirs.
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
        pods_wanted=1 + int(cluster.get("desiredWorkerReplicas") or 0),
        pods_ready=int(cluster.get("readyWorkerReplicas") or 0) + (cluster.get("state") == "ready"),
    )


def team_view(raw: Raw) -> TeamSettings | SettingsError:
    """The team's settings in a ConfigMap, or why they cannot be read."""
    try:
        return parse_team(raw.get("data") or {})
    except SettingsError as error:
        return error


def clean_up_view(raw: Raw) -> CleanUpView:
    """A batch Job; failed counts as finished: what is left in the store expires."""
    conditions = (raw.get("status") or {}).get("conditions", ())
    ends = [found for found in conditions if found["type"] in ("Complete", "Failed") and found["status"] == "True"]
    return CleanUpView(finished=bool(ends))


def why_waiting(pods: list[Raw]) -> str:
    """Why pods do not run, in the scheduler's and the kubelet's words; each word once."""
    causes: dict[str, None] = {}
    for pod in pods:
        status = pod.get("status") or {}
        for found in status.get("conditions", ()):
            if found["type"] == "PodScheduled" and found["status"] == "False":
                causes[found.get("message") or found.get("reason", "")] = None
        for container in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
            waiting = (container.get("state") or {}).get("waiting") or {}
            if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                causes[f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")] = None
    return "; ".join(cause for cause in causes if cause)


def key_of(raw: Raw) -> Key:
    """Which job an AgentTrainingJob is."""
    return Key(raw["metadata"]["namespace"], raw["metadata"]["name"])


def version_of(raw: Raw) -> int:
    """The version of an object; a later one is larger."""
    return int(raw["metadata"]["resourceVersion"])


def _status(raw: Raw | None) -> JobStatus:
    try:
        return JobStatus.model_validate_json(json.dumps(raw or {}))
    except ValidationError as error:
        # Another version wrote it. What counts is observed anew; attempts are counted by their RayJobs.
        log.warning("Status cannot be read", extra={"problem": str(error).splitlines()[0]})
        known = {name: (raw or {}).get(name, 0) for name in ("attempt", "failedAttempts")}
        return JobStatus(attempt=_number(known["attempt"]), failed_attempts=_number(known["failedAttempts"]))


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _number(text: Any) -> int:
    try:
        return int(text)
    except (TypeError, ValueError):
        return 0
