"""The table of agent kinds, by the type of their settings."""

from collections.abc import Mapping
from typing import Any

from turnmill.core.lookup import import_object
from turnmill.jobs.agent import AgentSettings
from turnmill.training.agent_kinds.base import AgentKind

# By name: a command that asks for one kind imports no other.
AGENT_KINDS: Mapping[str, str] = {
    "verlog": "turnmill.training.agent_kinds.verlog:VerlogKind",
    "tool": "turnmill.training.agent_kinds.tool:ToolKind",
    "multi_turn": "turnmill.training.agent_kinds.multi_turn:MultiTurnKind",
    "grl": "turnmill.training.agent_kinds.grl:GrlKind",
}


def agent_kind_class(agent_type: str) -> type[AgentKind[Any]]:
    """Return the class of the kind that `agent.type` of a job names."""
    kind: type[AgentKind[Any]] = import_object(AGENT_KINDS[agent_type])
    return kind


def agent_kind(agent: AgentSettings) -> AgentKind[Any]:
    """Return the kind of an agent, made of the agent's settings."""
    return agent_kind_class(agent.type)(agent)
