"""The agent kind `harness`: programs that take the policy for a model server."""

from collections.abc import Iterator

from turnmill.jobs.harness_agent import HarnessAgent
from turnmill.jobs.problems import Problem
from turnmill.jobs.values import Values
from turnmill.training.agent_kinds import checks
from turnmill.training.agent_kinds.base import AgentKind


class HarnessKind(AgentKind[HarnessAgent]):
    """Trajectories of unchanged agents, recorded by the gateway."""

    manager = "turnmill.rollout.harness.worker:HarnessManager"
    warm_start_recipe = "turnmill.training.warm_start.recipes:TaskRecipe"

    @property
    def max_prompt_tokens(self) -> int:
        """Maximum number of tokens of a prompt."""
        return self.agent.max_prompt_length

    @classmethod
    def problems(cls, values: Values) -> Iterator[Problem]:
        """Yield problems with the tasks, which must fit into JSON."""
        yield from checks.task_problems(values, as_json=True)

    @classmethod
    def warm_start_problems(cls, values: Values) -> Iterator[Problem]:
        """Yield a problem if the tasks have no demonstrations."""
        yield from checks.demonstration_problems(values)
