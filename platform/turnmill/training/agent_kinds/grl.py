"""The agent kind `grl`: groups of GRL's agents, each group with a size of its own."""

from collections.abc import Iterator

from turnmill.core.lookup import import_object
from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.grl_agent import GrlAgent
from turnmill.jobs.problems import Problem
from turnmill.jobs.values import Values
from turnmill.jobs.verl_settings import VerlSettings
from turnmill.training.agent_kinds import checks
from turnmill.training.agent_kinds.base import AgentKind


class GrlKind(AgentKind[GrlAgent]):
    """Groups of episodes of several kinds of agents, each agent with its environment."""

    manager = "turnmill.rollout.grl.worker:GrlLoopManager"
    trainers = {  # noqa: RUF012
        "sync": "turnmill.training.grl.trainer:GrlTrainerSync",
        "colocate_async": "turnmill.training.grl.trainer:GrlTrainerColocateAsync",
        "separate_async": "turnmill.training.grl.trainer:GrlTrainerSeparateAsync",
    }
    warm_start_recipe = "turnmill.training.warm_start.recipes:GrlRecipe"

    def verl_settings(self, job: AgentTrainingJob) -> VerlSettings:
        """Return the settings that groups of agents need, by verl's dotted names."""
        greedy, validation = self.agent.validation_sampling == "greedy", "actor_rollout_ref.rollout.val_kwargs"
        return super().verl_settings(job) | {
            f"{validation}.temperature": 0 if greedy else self.agent.temperature,
            f"{validation}.do_sample": not greedy,
        }

    @property
    def max_prompt_tokens(self) -> int:
        """Maximum number of tokens of a conversation that the policy reads."""
        return self.agent.max_prompt_length

    @classmethod
    def problems(cls, values: Values) -> Iterator[Problem]:
        """Yield problems with the agents and their environments."""
        yield from checks.grl_problems(values)
        yield from function_problems(values)

    def describe_environment(self, job: AgentTrainingJob) -> str:
        """Return the names of the agents that are trained."""
        return ", ".join(agent.name for agent in self.agent.learning_agents)

    def describe_step(self, job: AgentTrainingJob) -> str:
        """Return the number of groups and episodes of a step."""
        groups = self.agent.training_groups
        return f"{len(groups)} groups, {sum(group.size for group in groups)} episodes"


def function_problems(values: Values) -> Iterator[Problem]:
    """Yield a problem for each reward function that cannot be imported."""
    for field in ("rewardFunction", "validationRewardFunction"):
        path = values[f"spec.agent.{field}"]
        try:
            if path is not None and not callable(import_object(path)):
                yield Problem(f"spec.agent.{field}", path, "is no function", "Give package.module:name of one.")
        except ImportError as error:
            yield Problem(f"spec.agent.{field}", path, f"cannot be imported: {error}", "Give package.module:name.")
