"""verl's queue of samples, with its index beside the process that trains by it."""

from typing import Any

import transfer_queue as tq
from transfer_queue import interface

from turnmill.training.verl.placement import here


def start_queue(config: Any) -> None:
    """Start it; its storage is where `required_node_resource` says.

    TransferQueue 0.1.11 has no setting for its controller and puts it on any machine with a free CPU: one that only
    rolls out would take the run along when it goes.
    """
    anywhere = interface.TransferQueueController
    interface.TransferQueueController = _Here(anywhere)
    try:
        tq.init(config)
    finally:
        interface.TransferQueueController = anywhere


class _Here:
    """An actor class whose actors are on this machine, whatever it has left."""

    def __init__(self, actor_class: Any) -> None:
        self._actor_class = actor_class

    def options(self, **options: Any) -> Any:
        """As the actor class does it."""
        return self._actor_class.options(num_cpus=0, scheduling_strategy=here(), **options)
