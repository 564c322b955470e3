"""GRL's agents whose answers are text: Blocksworld, WebShop, BIRD and mathematics."""

from typing import ClassVar

from turnmill.environments.base import Environment
from turnmill.environments.grl.environment_agent import EnvironmentAgent
from turnmill.environments.grl.registry import register_agent
from turnmill.environments.maths.environment import PROBLEM_SETS


@register_agent("blocksworldAgent")
class BlocksworldAgent(EnvironmentAgent):
    """Moves blocks until the goal is reached; an answer without a move costs 5."""

    environment_name: ClassVar[str] = "blocksworld"
    system_prompt: ClassVar[str] = "You are a helpful assistant that stacks blocks."

    def match(self, action: str) -> str | None:
        """Accept any text: the environment itself penalizes answers without a move."""
        return super().match(action) or self.environment.default_action


@register_agent("webshopAgent")
class WebShopAgent(EnvironmentAgent):
    """Finds and buys the product that an instruction describes."""

    environment_name: ClassVar[str] = "webshop"
    system_prompt: ClassVar[str] = "You are a helpful assistant that shops online."


@register_agent("birdAgent")
class BirdAgent(EnvironmentAgent):
    """Answers questions about a database in SQL; an answer without a block of SQL costs 0.5 and ends the episode."""

    environment_name: ClassVar[str] = "bird"
    one_action: ClassVar[bool] = True
    system_prompt: ClassVar[str] = "You are a helpful assistant that writes SQL."

    def match(self, action: str) -> str | None:
        """Accept any text: the environment itself penalizes answers without a block of SQL."""
        return super().match(action) or self.environment.default_action


class MathsAgent(EnvironmentAgent):
    """Answers a mathematical problem until the answer is correct."""

    environment_name: ClassVar[str] = "maths"
    one_action: ClassVar[bool] = True
    task: ClassVar[str]
    system_prompt: ClassVar[str] = "You are a helpful assistant that solves mathematical problems."

    def make_environment(self, env_config: dict[str, object]) -> Environment:
        """Create the environment with the agent's set of problems."""
        return super().make_environment({"task": self.task, **env_config})

    def match(self, action: str) -> str | None:
        """Accept any text as an answer."""
        return super().match(action) or self.environment.default_action


# Each set of problems has an agent of its own, as in GRL: `gsm8kAgent`, `math500Agent` and so on.
for _task in PROBLEM_SETS:
    _agent_class = type(
        f"{_task.title()}Agent", (MathsAgent,), {"task": _task, "__module__": __name__, "__doc__": MathsAgent.__doc__}
    )
    globals()[_agent_class.__name__] = register_agent(f"{_task}Agent")(_agent_class)
