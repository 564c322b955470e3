"""Base class of agent kinds from outside this package."""

from turnmill.jobs.plugin_agent import PluginAgent
from turnmill.training.agent_kinds.base import AgentKind


class PluginKind(AgentKind[PluginAgent]):
    """An agent kind that a job file names as `package.module:Class`; see docs/plugins.md."""

    uses_store = False

    @property
    def max_prompt_tokens(self) -> int:
        """Maximum number of tokens of a task's prompt."""
        return self.agent.max_prompt_length
