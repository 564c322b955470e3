"""An agent loop from outside this package."""

from typing import Annotated, Any

from pydantic import Field

from turnmill.jobs.base_agent import BaseAgent
from turnmill.jobs.environment import EnvironmentSettings
from turnmill.jobs.settings import PluginPath

Tokens = Annotated[int, Field(ge=1, le=10_000_000)]


class PluginAgent(BaseAgent):
    """An agent loop of your own: `type` names its class, and what it has beyond these fields goes into `options`."""

    type: PluginPath
    """Agent kind of your own, as `package.module:Class`; what runs the job must be able to import it."""

    group_size: int = Field(default=8, ge=1, le=65_536)
    """Trajectories gathered per task and step: the group that a reward is compared with."""

    max_prompt_length: Tokens = 1024
    """Tokens a prompt may have."""

    max_response_length: Tokens = 1024
    """Tokens after the prompt, responses and observations together."""

    max_concurrent_trajectories: int | None = Field(default=1024, ge=1, le=1_000_000)
    """Trajectories in flight at once, over all workers; null sets no limit."""

    temperature: float = Field(default=1.0, gt=0, le=10)
    """Temperature at which responses are sampled during training."""

    options: dict[str, Any] = Field(default_factory=dict, max_length=64)
    """Settings of the class's own, which the class checks."""

    @property
    def response_token_limit(self) -> int:
        """The tokens after the prompt that a training row may have."""
        return self.max_response_length

    def max_concurrency(self, environment: EnvironmentSettings) -> int | None:
        """Return the number of trajectories in flight at once, over all workers; None for no limit."""
        return self.max_concurrent_trajectories
