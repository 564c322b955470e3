"""The table of agent kinds, by the type of their settings."""

from collections.abc import Mapping
from typing import Any

from turnmill.core.lookup import import_object
from turnmill.jobs.agent import AgentSettings
from turnmill.training.agent_kinds.base import AgentKind
from turnmill.training.plugins import plugin_class

# By name: a command that asks for one kind imports no other.
AGENT_KINDS: Mapping[str, str] = {
    "verlog": "turnmill.training.agent_kinds.verlog:VerlogKind",
    "tool": "turnmill.training.agent_kinds.tool:ToolKind",
    "multi_turn": "turnmill.training.agent_kinds.multi_turn:MultiTurnKind",
    "grl": "turnmill.training.agent_kinds.grl:GrlKind",
}


def agent_kind_class(agent_type: str) -> type[AgentKind[Any]]:
    """Return the class of the kind that `agent.type` of a job names, from the table or as `package.module:Class`.

    Raises SettingsError for a class from outside this package that cannot be imported, or is no agent kind.
    """
    if agent_type not in AGENT_KINDS:
        return plugin_class("agent", agent_type, AgentKind)
    kind: type[AgentKind[Any]] = import_object(AGENT_KINDS[agent_type])
    return kind


def agent_kind(agent: AgentSettings) -> AgentKind[Any]:
    """Return the kind of an agent, made of the agent's settings."""
    return agent_kind_class(agent.type)(agent)
