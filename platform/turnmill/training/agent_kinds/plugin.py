"""The base class of agent kinds from outside this package."""

from turnmill.jobs.plugin_agent import PluginAgent
from turnmill.training.agent_kinds.base import AgentKind


class PluginKind(AgentKind[PluginAgent]):
    """An agent kind whose job file names it as `package.module:Class`; see docs/plugins.md."""

    uses_store = False

    @property
    def max_prompt_tokens(self) -> int:
        """The tokens that a task's prompt may have."""
        return self.agent.max_prompt_length
