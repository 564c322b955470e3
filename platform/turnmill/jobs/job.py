"""The job file: `kind: AgentTrainingJob`."""

from typing import Annotated, Any, Literal

from pydantic import Field

from turnmill.jobs.agent import AgentSettings
from turnmill.jobs.algorithm import AlgorithmSettings
from turnmill.jobs.environment import EnvironmentSettings
from turnmill.jobs.model import ModelSettings
from turnmill.jobs.resources import ResourcesSettings
from turnmill.jobs.settings import Settings
from turnmill.jobs.tracking import MetricsSettings, TrackingSettings
from turnmill.jobs.training import TrainingSettings

API_VERSION = "turnmill.dev/v1alpha1"
KIND = "AgentTrainingJob"

# KubeRay appends to the name and allows 47 characters of its own; pods must start with a letter.
JobName = Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")]


class Metadata(Settings):
    """What the job is called."""

    name: JobName
    """Name of the job and of its run folder: lower-case letters, digits and dashes, a letter first."""

    namespace: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """Namespace of the job in a cluster; on one machine it is ignored."""

    labels: dict[str, str] = Field(default_factory=dict, max_length=64)
    """Labels for your own use."""

    annotations: dict[str, str] = Field(default_factory=dict, max_length=64)
    """Notes for your own use."""


class JobSpec(Settings):
    """What to train, on what, how and with which means."""

    model: ModelSettings
    """The model that learns: either a folder or a warm start."""

    agent: AgentSettings = AgentSettings()
    """The agent loop and what the policy reads and writes in a turn."""

    environment: EnvironmentSettings
    """The environment and how its answers become rewards."""

    algorithm: AlgorithmSettings = AlgorithmSettings()
    """Turn-level PPO: discounts within and between turns, and the losses."""

    training: TrainingSettings
    """How long to train, on how much, and how to look after the run."""

    resources: ResourcesSettings = ResourcesSettings()
    """Devices and processes."""

    retries: int = Field(default=0, ge=0, le=100)
    """Times a run that failed is started again from its last checkpoint."""

    tracking: TrackingSettings = TrackingSettings()
    """Trackers that get every step's numbers, besides the run folder."""

    metrics: MetricsSettings = MetricsSettings()
    """Prometheus metrics of the run."""

    verl: dict[str, Any] = Field(default_factory=dict, max_length=256)
    """Any setting of verl's by its own dotted name, for example `actor_rollout_ref.actor.grad_clip: 0.5`."""


class AgentTrainingJob(Settings):
    """A training run of an agent that acts over many turns."""

    api_version: Literal["turnmill.dev/v1alpha1"] = "turnmill.dev/v1alpha1"
    """Version of this format."""

    kind: Literal["AgentTrainingJob"] = "AgentTrainingJob"
    """Kind of this file."""

    metadata: Metadata
    """What the job is called."""

    spec: JobSpec
    """What to train, on what, how and with which means."""
