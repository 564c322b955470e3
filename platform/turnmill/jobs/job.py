"""The job file: `kind: AgentTrainingJob`."""

from typing import Annotated, Any, Literal

from pydantic import Field

from turnmill.jobs.agent import AgentSettings
from turnmill.jobs.algorithm import AlgorithmSettings, TurnPpo
from turnmill.jobs.environment import EnvironmentSettings
from turnmill.jobs.fine_tuning import Sft
from turnmill.jobs.grl_agent import GrlAgent
from turnmill.jobs.harness_agent import HarnessAgent
from turnmill.jobs.model import ModelSettings
from turnmill.jobs.multi_turn_agent import MultiTurnAgent
from turnmill.jobs.resources import ResourcesSettings
from turnmill.jobs.reward_model import RewardModelSettings
from turnmill.jobs.settings import Settings
from turnmill.jobs.tool_agent import ToolAgent
from turnmill.jobs.tracking import MetricsSettings, TrackingSettings
from turnmill.jobs.training import TrainingSettings
from turnmill.jobs.trajectory_algorithms import KlSettings, TrajectoryAlgorithmSettings
from turnmill.jobs.verl_settings import gpus_per_engine
from turnmill.jobs.verlog_agent import VerlogAgent

API_VERSION = "turnmill.dev/v1alpha1"
KIND = "AgentTrainingJob"

# KubeRay appends to the name and allows 47 characters of its own; pods must start with a letter.
JobName = Annotated[str, Field(min_length=1, max_length=40, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")]

QueueName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]


class Metadata(Settings):
    """Name, namespace and labels of the job."""

    name: JobName
    """Name of the job and of its run folder: lower-case letters, digits and dashes, a letter first."""

    namespace: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """Namespace of the job in a cluster; on one machine it is ignored."""

    labels: dict[str, str] = Field(default_factory=dict, max_length=64)
    """Labels for your own use."""

    annotations: dict[str, str] = Field(default_factory=dict, max_length=64)
    """Annotations for your own use."""


class JobSpec(Settings):
    """The training run: model, agent, environment, algorithm, training and resources."""

    model: ModelSettings
    """The model to train: a folder or a warm start."""

    agent: AgentSettings = VerlogAgent()
    """The agent loop, selected by `type`."""

    environment: EnvironmentSettings = EnvironmentSettings()
    """The environment, its processes and its rewards."""

    reward_model: RewardModelSettings | None = None
    """A second model, which gives rewards."""

    algorithm: AlgorithmSettings = TurnPpo()
    """The learning algorithm, selected by `type`."""

    training: TrainingSettings
    """Length of the training, size of its steps, validations and supervision."""

    resources: ResourcesSettings = ResourcesSettings()
    """Devices and processes."""

    cluster: Literal["own", "shared"] = "own"
    """Ray cluster in Kubernetes: `own` lives as long as the run, `shared` is the team's."""

    queue: QueueName | None = None
    """Kueue's LocalQueue for the run; left out, it starts at once."""

    queue_priority_class: QueueName | None = None
    """Kueue's WorkloadPriorityClass for the run, which decides its place in the queue and what it may preempt."""

    suspend: bool = False
    """Stop the run and release its devices; set back to false, the run resumes from its last checkpoint."""

    retries: int | None = Field(default=None, ge=0, le=100)
    """Number of times that a failed run is started again from its last checkpoint; left out, 3 in Kubernetes and 0 on
    one machine. Attempts that are disrupted, for example because a node is drained, do not count."""

    start_timeout_seconds: int = Field(default=3600, ge=1, le=31_536_000)
    """Seconds that an attempt may wait for its Ray cluster; after that it counts as failed."""

    ttl_seconds_after_finished: int | None = Field(default=None, ge=0, le=31_536_000)
    """Seconds after the end of the run until the job is deleted; left out, it is kept. Run folders are always kept."""

    managed_by: Literal["turnmill.dev/operator", "kueue.x-k8s.io/multikueue"] = "turnmill.dev/operator"
    """Controller of the job; `kueue.x-k8s.io/multikueue` leaves it to another cluster."""

    tracking: TrackingSettings = TrackingSettings()
    """Trackers that receive the metrics of every step, in addition to the run folder."""

    metrics: MetricsSettings = MetricsSettings()
    """Prometheus metrics of the run."""

    verl: dict[str, Any] = Field(default_factory=dict, max_length=256)
    """Further settings of verl by their dotted names, for example `actor_rollout_ref.rollout.top_p: 0.9`."""

    @property
    def verlog(self) -> VerlogAgent:
        """The agent of a job of type `verlog`."""
        assert isinstance(self.agent, VerlogAgent)
        return self.agent

    @property
    def tool_agent(self) -> ToolAgent:
        """The agent of a job of type `tool`."""
        assert isinstance(self.agent, ToolAgent)
        return self.agent

    @property
    def multi_turn_agent(self) -> MultiTurnAgent:
        """The agent of a job of type `multi_turn`."""
        assert isinstance(self.agent, MultiTurnAgent)
        return self.agent

    @property
    def grl_agent(self) -> GrlAgent:
        """The agent of a job of type `grl`."""
        assert isinstance(self.agent, GrlAgent)
        return self.agent

    @property
    def harness_agent(self) -> HarnessAgent:
        """The agent of a job of type `harness`."""
        assert isinstance(self.agent, HarnessAgent)
        return self.agent

    @property
    def environment_name(self) -> str:
        """The name of the environment, or the names of the kinds of agents that have environments of their own."""
        return self.agent.environment_name(self.environment)

    @property
    def turn_ppo(self) -> TurnPpo:
        """The algorithm of a job that learns from turns."""
        assert isinstance(self.algorithm, TurnPpo)
        return self.algorithm

    @property
    def trajectory_algorithm(self) -> TrajectoryAlgorithmSettings:
        """The algorithm of a job that learns from whole trajectories."""
        assert isinstance(self.algorithm, TrajectoryAlgorithmSettings)
        return self.algorithm

    @property
    def fine_tuning(self) -> Sft | None:
        """The algorithm of a job that only fine-tunes its model, without agent and environment."""
        return self.algorithm if isinstance(self.algorithm, Sft) else None

    @property
    def reinforcement(self) -> TurnPpo | TrajectoryAlgorithmSettings:
        """The algorithm of a job whose agent acts."""
        assert not isinstance(self.algorithm, Sft)
        return self.algorithm

    @property
    def learns_from_turns(self) -> bool:
        """True if steps have a number of turns, and episodes continue from step to step."""
        return self.algorithm.learns_from_turns

    @property
    def kl(self) -> KlSettings:
        """The KL penalty; its coefficient is 0 for algorithms without one."""
        return self.algorithm.kl

    @property
    def group_size(self) -> int:
        """Trajectories of each task of a job that learns from whole trajectories."""
        return self.agent.group_size

    @property
    def max_concurrency(self) -> int | None:
        """Trajectories in flight at once, over all workers; None for no limit."""
        return self.agent.max_concurrency(self.environment)

    def task_number(self, step: int, position: int) -> int:
        """Return the number of the task at a position of a step; positions from `tasksPerStep` on replace other tasks.

        Replacements come after all tasks that the run needs otherwise, so that no task is taken twice while there are
        others.
        """
        tasks = self.tasks_per_step
        if position < tasks:
            return (step - 1) * tasks + position
        batches = self.trajectory_algorithm.max_batches
        return self.training.steps * tasks + (step - 1) * (batches - 1) * tasks + position - tasks

    @property
    def gpus_per_engine(self) -> int:
        """GPUs of one inference engine."""
        return int(gpus_per_engine(self.resources.rollout.tensor_parallel, self.verl)[0])

    @property
    def gpus_per_engine_field(self) -> str:
        """The field of the job that sets `gpus_per_engine`."""
        return gpus_per_engine(self.resources.rollout.tensor_parallel, self.verl)[1]

    @property
    def turns_per_step(self) -> int:
        """Turns of a step, for jobs that learn from turns."""
        assert self.training.turns_per_step is not None
        return self.training.turns_per_step

    @property
    def tasks_per_step(self) -> int:
        """Tasks of a step, for jobs that learn from whole trajectories."""
        return self.agent.tasks_per_step(self.training)


class AgentTrainingJob(Settings):
    """A training run of an agent that acts over many turns."""

    api_version: Literal["turnmill.dev/v1alpha1"] = "turnmill.dev/v1alpha1"
    """Version of this format."""

    kind: Literal["AgentTrainingJob"] = "AgentTrainingJob"
    """Kind of this file."""

    metadata: Metadata
    """Name, namespace and labels of the job."""

    spec: JobSpec
    """The training run: model, agent, environment, algorithm, training and resources."""
