"""The agent kinds: what each type of agent loop brings to a run beside its settings, one module for each."""

from turnmill.training.agent_kinds.table import AGENT_KINDS, agent_kind, agent_kind_class

__all__ = ["AGENT_KINDS", "agent_kind", "agent_kind_class"]
