"""Agents that act in turnmill's environments."""

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
    """Acts in any environment: `envConfig` holds its `name`, its `task` and its options."""

    environment_name: ClassVar[str | None] = None
    """The environment of a subclass; left out, `name` of `envConfig` says which."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.environment: Environment = self.make_environment(dict(self.env_config))

    def make_environment(self, env_config: dict[str, Any]) -> Environment:
        """The environment, with what `envConfig` says."""
        name = self.environment_name or env_config.pop("name", None)
        if name is None:
            raise SettingsError("envConfig.name: is missing: an environmentAgent needs the name of an environment.")
        task = env_config.pop("task", None)
        options = _by_alias(find(name).Settings, env_config)
        return create(name, task, self.agent_config.max_actions_all_turns, options)

    def reset_env(self, seed: int) -> str:
        """Begin the episode that a seed stands for."""
        return self.tell(self.environment.reset(seed))

    def step_env(self, action: str) -> EnvOutput | None:
        """Do an action that the environment allows."""
        allowed = self.match(action)
        if allowed is None:
            return None
        result = self.environment.step(allowed)
        info = {"action_is_valid": 1.0, **result.info}
        return EnvOutput(self.tell(result.observation), result.reward, result.truncated, result.terminated, info)

    def match(self, action: str) -> str | None:
        """The environment's word for an action; None where it is not allowed."""
        return self.environment.match_action(action)

    def word_for(self, action: str) -> str:
        """The agent's word for an action of the environment."""
        return action

    def tell(self, observation: str) -> str:
        """What the environment shows, as the agent tells it."""
        return observation

    def describe(self) -> str:
        """What the environment says of itself."""
        return self.environment.instruction_prompt() if self.agent_config.prompt is None else ""

    def close(self) -> None:
        """Let go of the environment."""
        self.environment.close()


def _by_alias(settings: type[Settings], given: Mapping[str, Any]) -> dict[str, Any]:
    """Options by the names of a job file, `numBoxes` as well as GRL's `num_boxes`."""
    aliases = {name: field.alias or name for name, field in settings.model_fields.items()}
    return {aliases.get(name, name): value for name, value in given.items()}
