"""Workers that play tasks in verl's agent loops, and their manager."""

from verl.experimental.agent_loop.agent_loop import AgentLoopManager
from verl.utils.import_utils import load_class_from_fqn

from turnmill.core.errors import SettingsError
from turnmill.rollout.journal import create_journal
from turnmill.rollout.multi_turn.worker_mixin import MultiTurnWorkerMixin
from turnmill.rollout.trajectory_worker import TrajectoryManager, TrajectoryWorker
from turnmill.rollout.verl_types import RunConfig


class MultiTurnWorker(MultiTurnWorkerMixin, TrajectoryWorker):
    """Plays episodes of verl's agent loops, and puts their rows into the TransferQueue."""

    def __init__(self, config: RunConfig, *args: object, **kwargs: object) -> None:
        super().__init__(config, *args, journal=create_journal(config), **kwargs)


class MultiTurnManager(TrajectoryManager):
    """Distributes the episodes in flight to the workers."""

    worker_class = MultiTurnWorker


def manager_class(name: str | None) -> type[MultiTurnManager]:
    """Return turnmill's manager, or a subclass of it and the user's class. Raises SettingsError for other classes."""
    if name is None:
        return MultiTurnManager
    place = f"spec.agent.agentLoopManagerClass: {name!r}"
    try:
        given: type = load_class_from_fqn(name, "AgentLoopManager")
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(f"{place} names no class: {error}. Write it as package.module.Class.") from error
    if not issubclass(given, AgentLoopManager):
        raise SettingsError(f"{place} is no manager of verl's. Derive it from AgentLoopManagerTQ.")
    if issubclass(given, MultiTurnManager):
        return given
    return type(given.__name__, (given, MultiTurnManager), {"__module__": given.__module__})
