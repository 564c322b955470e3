"""Base class of the settings of agent loops."""

from turnmill.jobs.environment import EnvironmentSettings
from turnmill.jobs.settings import TypedSection
from turnmill.jobs.training import TrainingSettings


class BaseAgent(TypedSection):
    """Base class of the settings of all agent loops."""

    @property
    def response_token_limit(self) -> int:
        """The tokens that a response of a training row may have."""
        raise NotImplementedError

    def max_concurrency(self, environment: EnvironmentSettings) -> int | None:
        """Return the number of trajectories in flight at once, over all workers; None for no limit."""
        raise NotImplementedError

    def environment_name(self, environment: EnvironmentSettings) -> str:
        """Return the name of what the agent acts on."""
        return environment.name

    def tasks_per_step(self, training: TrainingSettings) -> int:
        """Return the number of tasks of a step, for jobs that learn from whole trajectories."""
        assert training.tasks_per_step is not None
        return training.tasks_per_step
