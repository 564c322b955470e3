"""The agent kind `tool`: responses and observations of a tool server in one context."""

from collections.abc import Iterator

from turnmill.jobs import AgentTrainingJob
from turnmill.jobs.problems import MISSING, Problem
from turnmill.jobs.tool_agent import ToolAgent
from turnmill.jobs.tool_server import RunToolServer
from turnmill.jobs.values import Values
from turnmill.jobs.verl_settings import VerlSettings
from turnmill.training.agent_kinds import checks
from turnmill.training.agent_kinds.base import AgentKind


class ToolKind(AgentKind[ToolAgent]):
    """Trajectories with tools, which use a tool server and the trajectory store."""

    manager = "turnmill.rollout.tool_agent.worker:ToolLoopManager"
    warm_start_recipe = "turnmill.training.warm_start.recipes:TaskRecipe"

    def verl_settings(self, job: AgentTrainingJob) -> VerlSettings:
        """Return the settings that trajectories with tools need, by verl's dotted names."""
        log_probs = {"actor_rollout_ref.rollout.calculate_log_probs": self.agent.logprobs}
        return super().verl_settings(job) | log_probs

    @property
    def max_prompt_tokens(self) -> int:
        """Maximum number of tokens of a task's prompt."""
        return self.agent.max_prompt_length

    @property
    def max_response_tokens(self) -> int:
        """Maximum number of tokens after the prompt, in training and validation."""
        return max(self.agent.max_response_length, self.agent.val_max_response_length or 0)

    def needs_tool_server(self) -> bool:
        """Return True if the settings give no address of a tool server."""
        return self.agent.tool_server_url is None

    def tools_to_serve(self) -> str | None:
        """Return the tools that the run's own server offers; None if trajectories call no tools or another server."""
        return self.agent.tool_type if self.agent.enable_agent and self.needs_tool_server() else None

    def tool_server(self) -> RunToolServer:
        """Return the settings of the run's own server."""
        return self.agent.tool_server or RunToolServer()

    @classmethod
    def problems(cls, values: Values) -> Iterator[Problem]:
        """Yield problems with the tools, the format of the context, and the tasks, whose data must fit into JSON."""
        if values["spec.agent.toolServer"] is not None and values["spec.agent.toolServerUrl"] is not None:
            way_out = "Give these settings to the servers at spec.agent.toolServerUrl, or leave that address out."
            yield Problem("spec.agent.toolServer", MISSING, "is for the server that a run starts itself", way_out)
        yield from checks.tool_problems(values)
        yield from checks.vision_problems(values)
        yield from checks.format_problems(values)
        yield from checks.task_problems(values, as_json=values["spec.agent.enableAgent"])

    @classmethod
    def warm_start_problems(cls, values: Values) -> Iterator[Problem]:
        """Yield a problem if the tasks have no demonstrations."""
        yield from checks.demonstration_problems(values)
