"""Agent kinds, one module each: the classes, services and verl settings of a type of agent loop."""

from turnmill.training.agent_kinds.table import AGENT_KINDS, agent_kind, agent_kind_class

__all__ = ["AGENT_KINDS", "agent_kind", "agent_kind_class"]
