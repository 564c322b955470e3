"""What the operator knows of the cluster between two looks: filled by watches, listings and its own writes."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from turnmill.core.errors import SettingsError
from turnmill.jobs.team import TeamSettings
from turnmill_operator.outcome import is_over
from turnmill_operator.status import State, ended_at
from turnmill_operator.views import (
    JobView,
    Key,
    KubeRay,
    Progress,
    Raw,
    RayJobView,
    job_view,
    key_of,
    ray_job_view,
    version_of,
)


class Cache:
    """The newest version of everything that was seen; older ones that come late are passed over."""

    def __init__(self) -> None:
        self.jobs: dict[Key, JobView] = {}
        self.teams: dict[str, TeamSettings | SettingsError] = {}
        self.kuberay: KubeRay | None = None
        self._ray_jobs: dict[Key, dict[str, RayJobView]] = {}
        self._progress: dict[Key, tuple[int, Progress]] = {}

    def put_job(self, raw: Raw) -> bool:
        """Take in a job; tells whether it was news."""
        key = key_of(raw)
        known = self.jobs.get(key)
        if known is not None and known.version >= version_of(raw):
            return False
        self.jobs[key] = job_view(raw, known)
        return True

    def drop_job(self, key: Key) -> None:
        """A job has gone; what it owned goes with it."""
        self.jobs.pop(key, None)
        self._progress.pop(key, None)

    def put_ray_job(self, raw: Raw) -> bool:
        """Take in a RayJob; tells whether it was news."""
        view = ray_job_view(raw)
        siblings = self._ray_jobs.setdefault(Key(view.namespace, view.job), {})
        known = siblings.get(view.name)
        if known is not None and known.version >= view.version:
            return False
        siblings[view.name] = view
        return True

    def drop_ray_job(self, key: Key, name: str) -> None:
        """A RayJob has gone."""
        siblings = self._ray_jobs.get(key, {})
        siblings.pop(name, None)
        if not siblings:
            self._ray_jobs.pop(key, None)

    def ray_jobs(self, key: Key | None = None) -> tuple[RayJobView, ...]:
        """The RayJobs of a job, or all."""
        if key is not None:
            return tuple(self._ray_jobs.get(key, {}).values())
        return tuple(view for siblings in self._ray_jobs.values() for view in siblings.values())

    def put_progress(self, key: Key, attempt: int, progress: Progress) -> bool:
        """Take in what a run told; tells whether it was news."""
        known = self._progress.get(key)
        self._progress[key] = (attempt, progress)
        return known != (attempt, progress)

    def progress(self, key: Key, attempt: int) -> Progress:
        """What the run of an attempt told last."""
        known = self._progress.get(key)
        return known[1] if known is not None and known[0] == attempt else Progress()

    def ahead_of(self, view: JobView) -> str:
        """The job that goes before this one on the team's shared cluster: the one that runs, else the oldest."""

        def order(other: JobView) -> tuple[bool, datetime, str]:
            return not self._holds_shared_cluster(other), other.created_at, other.key.name

        others = [other for other in self._of_team(view.key.namespace) if other.key != view.key]
        line = (other for other in others if self._holds_shared_cluster(other) or self._is_in_line(other))
        first = min(line, key=order, default=None)
        return first.key.name if first is not None and order(first) < order(view) else ""

    def sharing(self, namespace: str) -> list[JobView]:
        """The jobs of a team that ask for its shared cluster."""
        return [view for view in self._of_team(namespace) if view.asks_for_shared_cluster]

    def _of_team(self, namespace: str) -> Iterator[JobView]:
        return (view for key, view in self.jobs.items() if key.namespace == namespace and view.ours)

    def _is_in_line(self, view: JobView) -> bool:
        """Whether a job waits for the shared cluster; one that cannot start holds up nobody."""
        if not view.asks_for_shared_cluster or view.job is None or view.job.spec.suspend:
            return False
        # One that was changed to the shared cluster stays on its own until its attempt ends.
        busy = ended_at(view.status) or view.deleted_at or self._live_ray_jobs(view)
        return not busy and view.status.state != State.NOT_ADMITTED

    def _holds_shared_cluster(self, view: JobView) -> bool:
        """Whether a job runs on the shared cluster, whatever it asks for by now."""
        return any(not found.own_cluster for found in self._live_ray_jobs(view))

    def _live_ray_jobs(self, view: JobView) -> list[RayJobView]:
        return [found for found in self.ray_jobs(view.key) if found.owner_uid == view.uid and not is_over(found)]

    def states(self) -> dict[tuple[str, str], int]:
        """Jobs by namespace and state."""
        return dict(Counter((key.namespace, view.status.state or "") for key, view in self.jobs.items()))
