"""Base class of agent kinds."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from turnmill.core.lookup import import_object
from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.base_agent import BaseAgent
from turnmill.jobs.options import read_options
from turnmill.jobs.problems import Problem
from turnmill.jobs.settings import Settings
from turnmill.jobs.tool_server import RunToolServer
from turnmill.jobs.values import Values
from turnmill.jobs.verl_settings import VerlSettings
from turnmill.training.plugins import NoOptions

Agent = TypeVar("Agent", bound=BaseAgent)

TRAJECTORY_TRAINERS: Mapping[str, str] = {
    "sync": "turnmill.training.trainers.trajectory:TrajectoryTrainerSync",
    "colocate_async": "turnmill.training.trainers.trajectory:TrajectoryTrainerColocateAsync",
    "separate_async": "turnmill.training.trainers.trajectory:TrajectoryTrainerSeparateAsync",
}
"""The trainers over whole trajectories, by `training.mode`."""


class AgentKind(Generic[Agent]):
    """Classes, services and verl settings of one type of agent loop.

    Classes are given as `package.module:Class`, so that the table of kinds can be read without importing them.
    """

    manager: ClassVar[str]
    """Class that distributes the prompts of a step to agent loop workers (verl's `AgentLoopManager`)."""

    trainers: ClassVar[Mapping[str, str]] = TRAJECTORY_TRAINERS
    """The trainers, by `training.mode`."""

    warm_start_recipe: ClassVar[str | None] = None
    """Class that gathers the demonstrations of a warm start; None if the kind supports no warm start."""

    uses_store: ClassVar[bool] = True
    """True if turns in flight are kept in the trajectory store, so that another process can resume them."""

    options_model: ClassVar[type[Settings]] = NoOptions
    """Model of `agent.options`, for kinds from outside this package."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.options: Settings = read_options(
            self.options_model, getattr(agent, "options", {}), "agent.options", owner=agent.type
        )

    # ---- classes ----

    def manager_path(self, job: AgentTrainingJob) -> str:
        """Return the manager class, as `package.module:Class`."""
        return self.manager

    def manager_class(self, job: AgentTrainingJob) -> type[Any]:
        """Import the manager class."""
        manager: type[Any] = import_object(self.manager_path(job))
        return manager

    def trainer_paths(self, job: AgentTrainingJob) -> Mapping[str, str]:
        """Return the trainer classes as `package.module:Class`, by `training.mode`."""
        return self.trainers

    def trainer_class(self, job: AgentTrainingJob) -> type[Any]:
        """Import the trainer class of the job's mode."""
        trainer: type[Any] = import_object(self.trainer_paths(job)[job.spec.training.mode])
        return trainer

    # ---- configuration ----

    def verl_settings(self, job: AgentTrainingJob) -> VerlSettings:
        """Return the settings that the agent loop needs, by verl's dotted names."""
        rollout = "actor_rollout_ref.rollout"
        return {
            "data.custom_cls.name": "TaskRows",
            "data.train_batch_size": job.spec.tasks_per_step,
            f"{rollout}.n": job.spec.group_size,
            f"{rollout}.val_kwargs.n": job.spec.training.validation.samples,
            **token_limits(prompt=self.max_prompt_tokens, response=self.max_response_tokens),
            f"{rollout}.calculate_log_probs": True,
            f"{rollout}.agent.agent_loop_manager_class": self.manager_path(job).replace(":", "."),
        }

    @property
    def max_prompt_tokens(self) -> int:
        """Maximum number of tokens in the prompt of a row."""
        raise NotImplementedError

    @property
    def max_response_tokens(self) -> int:
        """Maximum number of tokens in the response of a row, in training and validation."""
        return self.agent.response_token_limit

    # ---- services ----

    def needs_tool_server(self) -> bool:
        """Return True if the agent calls a tool server and its settings give no address."""
        return False

    def tools_to_serve(self) -> str | None:
        """Return the tools of the server that a run on one machine starts, separated by commas; None for no server."""
        return None

    def tool_server(self) -> RunToolServer:
        """Return the settings of that server."""
        return RunToolServer()

    # ---- the command line ----

    @classmethod
    def problems(cls, values: Values) -> Iterator[Problem]:
        """Yield the problems that `turnmill check` finds with the agent and its environment or tasks."""
        yield from ()

    @classmethod
    def warm_start_problems(cls, values: Values) -> Iterator[Problem]:
        """Yield a problem if a warm start has nothing to imitate; called for jobs with `model.warmStart`."""
        yield from ()

    def describe_environment(self, job: AgentTrainingJob) -> str:
        """Return the environment or tasks in a few words."""
        return job.spec.environment.label

    def describe_step(self, job: AgentTrainingJob) -> str:
        """Return the size of a step in a few words."""
        return f"{job.spec.tasks_per_step} tasks, {job.spec.group_size} trajectories each"


def token_limits(*, prompt: int, response: int) -> dict[str, int]:
    """Return verl's settings for rows with at most `prompt` and `response` tokens."""
    return {
        "data.max_prompt_length": prompt,
        "data.max_response_length": response,
        "actor_rollout_ref.rollout.max_model_len": prompt + response,
    }
