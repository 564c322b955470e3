"""Tasks of an OpenEnv environment: seeds of its resets, for agents of type `harness` with `turnmill.openenv:play`."""

from typing import ClassVar, Literal

from pydantic import Field, JsonValue

from turnmill.core.errors import SettingsError
from turnmill.core.seeds import VALIDATION_SEEDS
from turnmill.jobs.options import EnvironmentOptions
from turnmill.openenv.agent import MESSAGE_TIMEOUT_SECONDS
from turnmill.tasks.base import Answer, Task, TaskSource, stable_hash

_SEEDS = 2**31


class OpenEnvTaskOptions(EnvironmentOptions):
    """The server, and what the policy reads at the beginning."""

    url: str
    """Address of the server, `http://` or `ws://`."""

    instruction: str = "Solve the task by calling functions."
    """Instructions for the policy, before the first observation."""

    observation_field: str | None = None
    """Field of the first observation that the policy reads, `a.b` for a field of a field; if omitted, all of it."""

    reset: dict[str, JsonValue] = Field(default_factory=dict)
    """Parameters of every reset besides the seed."""

    reward: Literal["last", "total"] = "last"
    """Reward of an episode: that of its last step that has one, as in OpenEnv's own rollouts, or the sum of all."""

    message_timeout_seconds: float = Field(default=MESSAGE_TIMEOUT_SECONDS, gt=0)
    """Time that the server may take to answer."""


class OpenEnvTasks(TaskSource):
    """A seed for each task, which the server is given with the reset: a group of trajectories has the same one."""

    name: ClassVar[str] = "openenv"
    rewarded_by_program: ClassVar[bool] = True
    Settings: ClassVar[type[EnvironmentOptions]] = OpenEnvTaskOptions
    options: OpenEnvTaskOptions

    def training(self, number: int) -> Task:
        """Return the n-th training task."""
        first = VALIDATION_SEEDS
        return self._task(number, first + stable_hash(self.seed, "openenv", "training", number) % (_SEEDS - first))

    def validation(self, number: int) -> Task:
        """Return the n-th validation task."""
        return self._task(number, stable_hash(self.seed, "openenv", "validation", number) % VALIDATION_SEEDS)

    def reward(self, task: Task, answer: Answer) -> float:
        """Raise SettingsError: the environment rewards, and the program passes it on."""
        raise SettingsError("agent.reward: task, but the reward is the environment's. Set agent.reward: program.")

    def _task(self, number: int, seed: int) -> Task:
        settings = self.options.model_dump(exclude={"instruction"})
        info = {"openenv": {**settings, "reset": {"seed": seed, **self.options.reset}}}
        return Task(number, [{"role": "user", "content": self.options.instruction}], extra_info=info)
