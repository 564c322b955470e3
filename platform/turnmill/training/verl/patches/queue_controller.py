"""Placement of the controller of verl's queue on the trainer's node."""

from contextlib import AbstractContextManager
from typing import Protocol

from transfer_queue import interface

from turnmill.training.verl.patches import Patch, replaced
from turnmill.training.verl.placement import this_node

PATCH = Patch(
    target="transfer_queue.interface.TransferQueueController",
    change="the controller of verl's queue is beside the trainer, on GPUs as well",
    reason="it has no setting for that, and goes to any machine with a free CPU: one that only rolls out would take "
    "the run along when it goes",
    distribution="TransferQueue",
    version="0.1.11",
    source="https://github.com/Ascend/TransferQueue/blob/v0.1.11/transfer_queue/interface.py#L200",
    quote="_TQ_CONTROLLER = TransferQueueController.options(",
)


class _ActorClass(Protocol):
    def options(self, **options: object) -> object: ...


class _OnThisNode:
    """An actor class whose actors run on this node, even if all its CPUs are in use."""

    def __init__(self, actor_class: _ActorClass) -> None:
        self._actor_class = actor_class

    def options(self, **options: object) -> object:
        return self._actor_class.options(num_cpus=0, scheduling_strategy=this_node(), **options)


def applied() -> AbstractContextManager[None]:
    """Apply the patch in this process while the context lasts."""
    return replaced(interface, "TransferQueueController", _OnThisNode(interface.TransferQueueController))
