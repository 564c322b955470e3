"""An agent loop from outside this package."""

from typing import Annotated, Any

from pydantic import Field

from turnmill.jobs.base_agent import BaseAgent
from turnmill.jobs.environment import EnvironmentSettings
from turnmill.jobs.settings import PluginPath

Tokens = Annotated[int, Field(ge=1, le=10_000_000)]


class PluginAgent(BaseAgent):
    """An agent kind of your own: `type` names its class, and `options` has the settings beyond these fields."""

    type: PluginPath
    """Agent kind of your own, as `package.module:Class`; it must be importable where the job runs."""

    group_size: int = Field(default=8, ge=1, le=65_536)
    """Trajectories gathered per task and step; rewards are compared within this group."""

    max_prompt_length: Tokens = 1024
    """Tokens of a prompt."""

    max_response_length: Tokens = 1024
    """Tokens after the prompt: all responses and observations of a trajectory together."""

    max_concurrent_trajectories: int | None = Field(default=1024, ge=1, le=1_000_000)
    """Trajectories in flight at once, over all workers; null sets no limit."""

    temperature: float = Field(default=1.0, gt=0, le=10)
    """Temperature at which responses are sampled during training."""

    options: dict[str, Any] = Field(default_factory=dict, max_length=64)
    """Settings of the class, which the class validates."""

    @property
    def response_token_limit(self) -> int:
        """The tokens after the prompt that a training row may have."""
        return self.max_response_length

    def max_concurrency(self, environment: EnvironmentSettings) -> int | None:
        """Return the number of trajectories in flight at once, over all workers; None for no limit."""
        return self.max_concurrent_trajectories
