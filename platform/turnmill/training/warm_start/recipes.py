"""Demonstrations of a warm start, for each kind of agent."""

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from turnmill.core.errors import SettingsError
from turnmill.core.lookup import import_object
from turnmill.environments import create
from turnmill.jobs.agent import AgentSettings
from turnmill.jobs.base_agent import BaseAgent
from turnmill.jobs.environment import EnvironmentSettings
from turnmill.jobs.grl_agent import GrlAgent
from turnmill.jobs.model import WarmStart
from turnmill.jobs.verlog_agent import VerlogAgent
from turnmill.tasks import create_source
from turnmill.training.agent_kinds import agent_kind
from turnmill.training.warm_start.expert import expert_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from turnmill.training.warm_start.cloning import Row

# torch and transformers take seconds to import; a warm start that is found in the cache needs neither.

Agent = TypeVar("Agent", bound=BaseAgent)


class Recipe(Generic[Agent]):
    """Gathers demonstrations for one kind of agent."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent

    def ingredients(self) -> list[Any]:
        """Return the agent's settings that the demonstrations depend on, as JSON values."""
        return []

    def demonstrations(
        self, environment: EnvironmentSettings, settings: WarmStart
    ) -> "tuple[PreTrainedTokenizerFast, list[Row]]":
        """Return a tokenizer, and the demonstrations as token ids."""
        raise NotImplementedError


class EnvironmentRecipe(Recipe[VerlogAgent]):
    """Turns played by the expert of an environment."""

    def ingredients(self) -> list[Any]:
        """Return the maximum number of turns, and the settings of the memory."""
        return [self.agent.max_turns, self.agent.memory.model_dump()]

    def demonstrations(
        self, environment: EnvironmentSettings, settings: WarmStart
    ) -> "tuple[PreTrainedTokenizerFast, list[Row]]":
        """Let the expert play episodes."""
        from turnmill.training.warm_start.rows import build_rows

        world = create(environment.name, environment.task, self.agent.max_turns, environment.options)
        return build_rows(world, expert_of(world), settings, self.agent.memory)


class TaskRecipe(Recipe[BaseAgent]):
    """Demonstrations of a task source."""

    turn_break = "\n"
    """What is between a response's end and the message after it."""

    def demonstrations(
        self, environment: EnvironmentSettings, settings: WarmStart
    ) -> "tuple[PreTrainedTokenizerFast, list[Row]]":
        """Return the demonstrations of the tasks."""
        from turnmill.training.warm_start.task_rows import build_task_rows, teacher_of

        teacher = teacher_of(create_source(environment.name, environment.options))
        return build_task_rows(teacher, settings, turn_break=self.turn_break)


class ProgramRecipe(TaskRecipe):
    """Demonstrations as the gateway renders conversations: by the chat template, which has no line breaks."""

    turn_break = ""

    def ingredients(self) -> list[Any]:
        """Return what is between the turns."""
        return [self.turn_break]


class GrlRecipe(Recipe[GrlAgent]):
    """Turns played by the experts of several kinds of agents."""

    def ingredients(self) -> list[Any]:
        """Return the agents that are trained."""
        return [agent.model_dump(mode="json") for agent in self.agent.learning_agents]

    def demonstrations(
        self, environment: EnvironmentSettings, settings: WarmStart
    ) -> "tuple[PreTrainedTokenizerFast, list[Row]]":
        """Let the expert of each kind of agent play episodes."""
        from turnmill.training.warm_start.agent_rows import build_agent_rows

        return build_agent_rows(self.agent.learning_agents, settings)


def recipe_of(agent: AgentSettings) -> Recipe[Any]:
    """Return the recipe for an agent. Raises SettingsError if its kind supports no warm start."""
    path = agent_kind(agent).warm_start_recipe
    if path is None:
        raise SettingsError(
            f"model.warmStart: no tiny model can be made for agents of type {agent.type!r}. "
            "Give model.path a folder with a model."
        )
    recipe: Recipe[Any] = import_object(path)(agent)
    return recipe
