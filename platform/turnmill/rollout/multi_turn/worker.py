"""Workers that play conversations, and the manager that hands tasks out to them."""

from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopManager
from verl.utils.import_utils import load_class_from_fqn

from turnmill.core.errors import SettingsError
from turnmill.rollout.journal import create_journal
from turnmill.rollout.multi_turn.worker_mixin import ConversationPlayer
from turnmill.rollout.trajectory_worker import TrajectoryManager, TrajectoryWorker


class MultiTurnWorker(ConversationPlayer, TrajectoryWorker):
    """Plays conversations, and puts their rows where the trainer finds them."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, journal=create_journal(config), **kwargs)


class MultiTurnManager(TrajectoryManager):
    """Spreads the conversations in flight over the workers."""

    worker_class = MultiTurnWorker


def manager_class(name: str | None) -> type[MultiTurnManager]:
    """The manager of a job: ours, or a user's on top of it. Raises SettingsError for a class that is none."""
    if name is None:
        return MultiTurnManager
    place = f"spec.agent.agentLoopManagerClass: {name!r}"
    try:
        given = load_class_from_fqn(name, "AgentLoopManager")
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(f"{place} names no class: {error}. Write it as package.module.Class.") from error
    if not issubclass(given, AgentLoopManager):
        raise SettingsError(f"{place} is no manager of verl's. Derive it from AgentLoopManagerTQ.")
    if issubclass(given, MultiTurnManager):
        return given
    return type(given.__name__, (given, MultiTurnManager), {"__module__": given.__module__})
