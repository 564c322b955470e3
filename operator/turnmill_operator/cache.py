"""What the operator knows of the cluster between two looks: filled by watches, listings and its own writes."""

from collections import Counter

from turnmill.core.errors import SettingsError
from turnmill.jobs.team import TeamSettings
from turnmill_operator.views import JobView, Key, KubeRay, Progress, RayJobView

FIRST_PORT, NUM_PORTS = 9464, 100


class Cache:
    """The newest version of everything that was seen; older ones that come late are passed over."""

    def __init__(self) -> None:
        self.jobs: dict[Key, JobView] = {}
        self.teams: dict[str, TeamSettings | SettingsError] = {}
        self.kuberay: KubeRay | None = None
        self._ray_jobs: dict[Key, dict[str, RayJobView]] = {}
        self._progress: dict[Key, tuple[int, Progress]] = {}
        self._ports: dict[Key, int] = {}

    def put_job(self, view: JobView) -> bool:
        """Take in a job; tells whether it was news."""
        known = self.jobs.get(view.key)
        if known is not None and known.version >= view.version:
            return False
        self.jobs[view.key] = view
        return True

    def drop_job(self, key: Key) -> None:
        """A job has gone; what it owned goes with it."""
        self.jobs.pop(key, None)
        self._progress.pop(key, None)
        self._ports.pop(key, None)

    def put_ray_job(self, view: RayJobView) -> bool:
        """Take in a RayJob; tells whether it was news."""
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

    def port_for(self, key: Key) -> int | None:
        """A port for the metrics of a job's run that no other run of the namespace's shared cluster has."""
        taken = {port for other, port in self._ports.items() if other.namespace == key.namespace and other != key}
        for view in self.ray_jobs():
            if view.namespace == key.namespace and view.job != key.name and not view.own_cluster:
                taken.add(view.metrics_port)
        mine = self._ports.get(key)
        if mine is None or mine in taken:
            mine = next((port for port in range(FIRST_PORT, FIRST_PORT + NUM_PORTS) if port not in taken), None)
        if mine is not None:
            self._ports[key] = mine
        return mine

    def states(self) -> dict[tuple[str, str], int]:
        """Jobs by namespace and state."""
        return dict(Counter((key.namespace, view.status.state or "") for key, view in self.jobs.items()))
