"""Base class of agents that act in turnmill's environments."""

from collections.abc import Mapping
from typing import Any, ClassVar

from turnmill.core.errors import SettingsError
from turnmill.environments.base import Environment
from turnmill.environments.grl.base_agent import BaseAgent, EnvOutput
from turnmill.environments.grl.registry import register_agent
from turnmill.environments.registry import create, find
from turnmill.jobs.settings import Settings


@register_agent("environmentAgent")
class EnvironmentAgent(BaseAgent):
    """Acts in any environment: `envConfig` contains its `name`, its `task` and its options."""

    environment_name: ClassVar[str | None] = None
    """Name of a subclass's environment; if None, `envConfig.name`."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.environment: Environment = self.make_environment(dict(self.env_config))

    def make_environment(self, env_config: dict[str, Any]) -> Environment:
        """Create the environment from `envConfig`. Raises SettingsError if it has no name or cannot be created."""
        name = self.environment_name or env_config.pop("name", None)
        if name is None:
            raise SettingsError("envConfig.name: is missing: an environmentAgent needs the name of an environment.")
        task = env_config.pop("task", None)
        options = _by_alias(find(name).Settings, env_config)
        return create(name, task, self.agent_config.max_actions_all_turns, options)

    def reset_env(self, seed: int) -> str:
        """Start the episode of a seed."""
        return self.tell(self.environment.reset(seed))

    def step_env(self, action: str) -> EnvOutput | None:
        """Execute an action if the environment allows it."""
        allowed = self.match(action)
        if allowed is None:
            return None
        result = self.environment.step(allowed)
        info = {"action_is_valid": 1.0, **result.info}
        return EnvOutput(self.tell(result.observation), result.reward, result.truncated, result.terminated, info)

    def match(self, action: str) -> str | None:
        """Return the environment's name of an action, or None if it is not allowed."""
        return self.environment.match_action(action)

    def word_for(self, action: str) -> str:
        """Return the agent's name of one of the environment's actions."""
        return action

    def tell(self, observation: str) -> str:
        """Return an observation of the environment as the agent's state."""
        return observation

    def describe(self) -> str:
        """Return the environment's instructions, unless `agentConfig.prompt` replaces them."""
        return self.environment.instruction_prompt() if self.agent_config.prompt is None else ""

    def close(self) -> None:
        """Close the environment."""
        self.environment.close()


def _by_alias(settings: type[Settings], given: Mapping[str, object]) -> dict[str, object]:
    """Rename GRL's options, such as `num_boxes`, to those of a job file, such as `numBoxes`."""
    aliases = {name: field.alias or name for name, field in settings.model_fields.items()}
    return {aliases.get(name, name): value for name, value in given.items()}
