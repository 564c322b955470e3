"""Settings that a team's release of the chart provides for its jobs: `team.yaml` in the ConfigMap `turnmill-team`."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from turnmill.core.errors import SettingsError
from turnmill.jobs.problems import JobError
from turnmill.jobs.settings import Settings, Word
from turnmill.jobs.validation_text import problems_text
from turnmill.jobs.yaml_file import parse_yaml

CONFIG_MAP = "turnmill-team"
KEY = "team.yaml"
RUNS_FOLDER = "/runs"
OLDEST_RAY = "2.52.0"
"""From this version on, clients of a Ray cluster need a token."""

OWNED_LABELS = frozenset({"turnmill.dev", "app.kubernetes.io", "kueue.x-k8s.io"})
"""Prefixes of labels that a team cannot set on its runs."""

Label = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")]
LabelKey = Annotated[str, Field(max_length=317, pattern=r"^([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")]
LabelValue = Annotated[str, Field(max_length=63, pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$")]
RayStartParams = dict[str, str]
PodTemplate = dict[str, Any]


class HeadGroup(Settings):
    """The pod of a run's trainer."""

    ray_start_params: RayStartParams = Field(default_factory=dict, max_length=64)
    """Parameters of `ray start`, as KubeRay takes them."""

    template: PodTemplate
    """The whole pod template; Ray runs in its first container."""


class WorkerGroup(Settings):
    """Pods of one kind, with one type of accelerator."""

    name: Label
    """Name of the group, for example `h100`."""

    accelerator: Word
    """GPU type by which jobs name it, for example `H100`; the pods offer it to Ray as `accelerator_type:H100`."""

    device: Literal["cuda", "cpu"] = "cuda"
    """`cpu` replaces GPUs by logical ones, which `rayStartParams` sets."""

    max_replicas: int = Field(ge=0, le=1024)
    """Maximum number of pods for one job."""

    gpus_per_node: int = Field(ge=0, le=64)
    """GPUs per pod."""

    ray_start_params: RayStartParams = Field(default_factory=dict, max_length=64)
    """Parameters of `ray start`, as KubeRay takes them."""

    template: PodTemplate
    """The whole pod template; Ray runs in its first container."""


class CleanUp(Settings):
    """A short-lived pod that deletes a deleted job's data from the trajectory store."""

    template: PodTemplate
    """The whole pod template; the operator sets the arguments of its first container, whose entry point is `turnmill`
    and whose environment has the address of the store."""


class TeamSettings(Settings):
    """Settings that a team's release of the chart provides for its jobs.

    Pod templates are complete: image, environment, volumes, scheduling, security. The operator adds what belongs to one
    job: labels, replicas and the port of its metrics.
    """

    ray_version: Annotated[str, Field(min_length=5, max_length=32, pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$")]
    """Version of Ray in the images."""

    head: HeadGroup
    """The pod of a run's trainer."""

    worker_groups: Annotated[tuple[WorkerGroup, ...], Field(strict=False, min_length=1, max_length=17)]
    """Pods for training and rollout; the first group serves jobs that name no accelerator."""

    run_labels: Annotated[dict[LabelKey, LabelValue], Field(max_length=32)] = Field(default_factory=dict)
    """Labels of the RayJobs of runs, which KubeRay passes on to their Ray clusters: those by which a batch scheduler
    takes them, such as `volcano.sh/queue-name`."""

    shared_cluster: Label | None = None
    """Name of the team's RayCluster, for jobs with `cluster: shared`."""

    store_url: Word | None = None
    """Address of the trajectory store, without its password: `redis://HOST:6379`."""

    tool_server_url: Word | None = None
    """Address of the team's tool servers, for jobs that name none: `http://HOST:5500`."""

    clean_up: CleanUp | None = None
    """Pod that deletes a deleted job's data from the trajectory store; left out, the data expires there."""

    @field_validator("ray_version")
    @classmethod
    def _has_tokens(cls, version: str) -> str:
        if _numbers(version) < _numbers(OLDEST_RAY):
            raise ValueError(f"{version} has no tokens for clients of a Ray cluster; use {OLDEST_RAY} or later")
        return version

    @field_validator("run_labels")
    @classmethod
    def _leaves_labels_alone(cls, labels: dict[str, str]) -> dict[str, str]:
        if taken := sorted(key for key in labels if key.partition("/")[0] in OWNED_LABELS):
            raise ValueError(f"{', '.join(taken)}: the operator or Kueue sets them; leave them out")
        return labels

    @model_validator(mode="after")
    def _holds_together(self) -> Self:
        for field in ("name", "accelerator"):
            values = [getattr(group, field) for group in self.worker_groups]
            if len(set(values)) < len(values):
                raise ValueError(f"two worker groups have the same {field}: {', '.join(values)}; keep them apart")
        groups: dict[str, HeadGroup | WorkerGroup]
        groups = {"head": self.head, **{f"workerGroups.{group.name}": group for group in self.worker_groups}}
        for place, group in groups.items():
            _check_template(f"{place}.template", group.template)
        return self

    def group_for(self, accelerator: str | None) -> WorkerGroup | None:
        """Return the worker group with an accelerator, or the first group for None; None if there is no such group."""
        groups = self.worker_groups
        return next((group for group in groups if accelerator in (None, group.accelerator)), None)

    @property
    def accelerators(self) -> str:
        """All accelerators, separated by commas, for messages."""
        return ", ".join(group.accelerator for group in self.worker_groups)


def parse_team(data: Mapping[str, str]) -> TeamSettings:
    """Parse the settings in a ConfigMap's data. Raises SettingsError."""
    if KEY not in data:
        raise SettingsError(f"ConfigMap {CONFIG_MAP} has no key {KEY}. Install the chart turnmill-team again.")
    try:
        return TeamSettings.model_validate(parse_yaml(data[KEY]).value, by_alias=True, by_name=False)
    except JobError as error:
        raise SettingsError(f"ConfigMap {CONFIG_MAP}, {KEY}: {error}") from error
    except ValidationError as error:
        raise SettingsError(
            f"ConfigMap {CONFIG_MAP}, {KEY}: {problems_text(error)}. "
            "Upgrade the chart turnmill-team to the operator's version."
        ) from error


def run_dir(namespace: str, name: str, uid: str) -> str:
    """Return the folder of a job's run on the team's shared storage; it is the same for every attempt."""
    return f"{RUNS_FOLDER}/{namespace}/{name}-{uid[:8]}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _check_template(place: str, template: PodTemplate) -> None:
    containers = (template.get("spec") or {}).get("containers") or []
    if not containers:
        raise ValueError(f"{place} has no container; Ray runs in the first one")
    mounts = [mount.get("mountPath") for mount in containers[0].get("volumeMounts") or []]
    if RUNS_FOLDER not in mounts:
        raise ValueError(
            f"{place} mounts nothing at {RUNS_FOLDER}, where runs keep the checkpoints that a retry starts from; "
            "mount shared storage there"
        )
