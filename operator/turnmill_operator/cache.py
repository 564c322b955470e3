"""In-memory cache of the cluster's objects, filled by watches, listings and the operator's own writes."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from turnmill.core.errors import SettingsError
from turnmill.jobs.team import TeamSettings
from turnmill_operator.ray_job_status import is_finished
from turnmill_operator.status import State, finished_at
from turnmill_operator.views import (
    Disruption,
    JobView,
    KubeRay,
    ObjectKey,
    RawObject,
    RayJobView,
    RunProgress,
    job_view,
    key_of,
    ray_job_view,
    version_of,
)


class Cache:
    """The latest version of every object seen; older versions that arrive late are ignored."""

    def __init__(self) -> None:
        self.jobs: dict[ObjectKey, JobView] = {}
        self.teams: dict[str, TeamSettings | SettingsError] = {}
        self.kuberay: KubeRay | None = None
        self._ray_jobs: dict[ObjectKey, dict[str, RayJobView]] = {}
        self._progress: dict[ObjectKey, tuple[int, RunProgress]] = {}
        self._disruptions: dict[ObjectKey, tuple[int, Disruption]] = {}
        self._failed_nodes: dict[ObjectKey, tuple[int, tuple[str, ...]]] = {}

    def put_job(self, raw: RawObject) -> bool:
        """Store a job; return whether it is newer than the cached one."""
        key = key_of(raw)
        known = self.jobs.get(key)
        if known is not None and known.version >= version_of(raw):
            return False
        self.jobs[key] = job_view(raw, known)
        return True

    def drop_job(self, key: ObjectKey) -> None:
        """Remove a deleted job, its progress and its disruptions."""
        self.jobs.pop(key, None)
        self._progress.pop(key, None)
        self._disruptions.pop(key, None)
        self._failed_nodes.pop(key, None)

    def put_ray_job(self, raw: RawObject) -> bool:
        """Store a RayJob; return whether it is newer than the cached one."""
        view = ray_job_view(raw)
        siblings = self._ray_jobs.setdefault(ObjectKey(view.namespace, view.job), {})
        known = siblings.get(view.name)
        if known is not None and known.version >= view.version:
            return False
        siblings[view.name] = view
        return True

    def drop_ray_job(self, key: ObjectKey, name: str) -> None:
        """Remove a deleted RayJob."""
        siblings = self._ray_jobs.get(key, {})
        siblings.pop(name, None)
        if not siblings:
            self._ray_jobs.pop(key, None)

    def ray_jobs(self, key: ObjectKey | None = None) -> tuple[RayJobView, ...]:
        """Return the RayJobs of one job, or all RayJobs."""
        if key is not None:
            return tuple(self._ray_jobs.get(key, {}).values())
        return tuple(view for siblings in self._ray_jobs.values() for view in siblings.values())

    def put_progress(self, key: ObjectKey, attempt: int, progress: RunProgress) -> bool:
        """Store the progress of an attempt's run; return whether it has changed."""
        known = self._progress.get(key)
        self._progress[key] = (attempt, progress)
        return known != (attempt, progress)

    def progress(self, key: ObjectKey, attempt: int) -> RunProgress:
        """Return the last progress of an attempt's run."""
        known = self._progress.get(key)
        return known[1] if known is not None and known[0] == attempt else RunProgress()

    def put_disruption(self, key: ObjectKey, attempt: int, disruption: Disruption) -> None:
        """Store the last disruption of a pod of a job's newest attempt."""
        known = self._disruptions.get(key)
        if known is None or (known[0], known[1].at) <= (attempt, disruption.at):
            self._disruptions[key] = (attempt, disruption)

    def disruption(self, key: ObjectKey, attempt: int) -> Disruption | None:
        """Return the last disruption of a pod of an attempt."""
        known = self._disruptions.get(key)
        return known[1] if known is not None and known[0] == attempt else None

    def put_failed_node(self, key: ObjectKey, attempt: int, node: str) -> None:
        """Store a node on which a pod of a job's newest attempt died; the job's status has those of earlier ones."""
        last, nodes = self._failed_nodes.get(key, (0, ()))
        if attempt > last:
            self._failed_nodes[key] = (attempt, (node,))
        elif attempt == last and node not in nodes:
            self._failed_nodes[key] = (attempt, (*nodes, node))

    def failed_nodes(self, key: ObjectKey, attempt: int) -> tuple[str, ...]:
        """Return the nodes on which pods of an attempt died."""
        known = self._failed_nodes.get(key)
        return known[1] if known is not None and known[0] == attempt else ()

    def blocking_job(self, view: JobView) -> str:
        """Return the name of the job that the team's shared cluster serves first: the one running, else the oldest.

        Empty if that is this job.
        """

        def order(other: JobView) -> tuple[bool, datetime, str]:
            return not self._uses_shared_cluster(other), other.created_at, other.key.name

        others = [other for other in self._jobs_of_team(view.key.namespace) if other.key != view.key]
        candidates = (
            other for other in others if self._uses_shared_cluster(other) or self._waits_for_shared_cluster(other)
        )
        first = min(candidates, key=order, default=None)
        return first.key.name if first is not None and order(first) < order(view) else ""

    def shared_cluster_jobs(self, namespace: str) -> list[JobView]:
        """Return the jobs of a team that ask for its shared cluster."""
        return [view for view in self._jobs_of_team(namespace) if view.asks_for_shared_cluster]

    def _jobs_of_team(self, namespace: str) -> Iterator[JobView]:
        return (view for key, view in self.jobs.items() if key.namespace == namespace and view.is_managed)

    def _waits_for_shared_cluster(self, view: JobView) -> bool:
        """Return whether a job waits for the shared cluster; a job that cannot start blocks no other."""
        if not view.asks_for_shared_cluster or view.job is None or view.job.spec.suspend:
            return False
        # A job that was changed to use the shared cluster stays on its own cluster until its attempt ends.
        busy = finished_at(view.status) or view.deleted_at or self._live_ray_jobs(view)
        return not busy and view.status.state != State.NOT_ADMITTED

    def _uses_shared_cluster(self, view: JobView) -> bool:
        """Return whether a job runs on the shared cluster, whatever its spec asks for now."""
        return any(not found.own_cluster for found in self._live_ray_jobs(view))

    def _live_ray_jobs(self, view: JobView) -> list[RayJobView]:
        return [found for found in self.ray_jobs(view.key) if found.owner_uid == view.uid and not is_finished(found)]

    def count_by_state(self) -> dict[tuple[str, str], int]:
        """Return the number of jobs by namespace and state."""
        return dict(Counter((key.namespace, view.status.state or "") for key, view in self.jobs.items()))
