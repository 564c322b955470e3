"""Agent kinds by the type of their settings; the table is `turnmill.jobs.agent`."""

from typing import Any

from turnmill.core.lookup import import_object
from turnmill.jobs.agent import AgentSettings
from turnmill.training.agent_kinds.base import AgentKind
from turnmill.training.plugins import implementations, plugin_class

AGENT_KINDS = implementations(AgentSettings)


def agent_kind_class(agent_type: str) -> type[AgentKind[Any]]:
    """Return the class for `agent.type` of a job, from the table or by its path `package.module:Class`.

    Raises PluginError if a class from outside this package cannot be imported, or is no subclass of AgentKind.
    """
    if agent_type not in AGENT_KINDS:
        return plugin_class("agent", agent_type, AgentKind)
    kind: type[AgentKind[Any]] = import_object(AGENT_KINDS[agent_type])
    return kind


def agent_kind(agent: AgentSettings) -> AgentKind[Any]:
    """Return the agent kind with an agent's settings."""
    return agent_kind_class(agent.type)(agent)
