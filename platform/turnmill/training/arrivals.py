"""Prompts whose trajectories have ended, as the agent loop workers report them.

So the trainer waits for its rows without asking the queue for all keys again and again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import ray
from ray import ObjectRef

from turnmill.rollout.actor_deaths import LOSSES
from turnmill.rollout.verl_types import ActorHandle
from turnmill.rollout.worker import EndedPrompt, LoopManager


@dataclass(frozen=True, slots=True)
class _Call:
    index: int
    worker: ActorHandle
    position: int
    """Number of the first prompt that it asks for."""


class Arrivals:
    """Reports of ended prompts from all workers, each of which has one call waiting for its next ones."""

    def __init__(self, manager: LoopManager) -> None:
        self._manager = manager
        self._calls: dict[ObjectRef, _Call] = {}
        for index, worker in enumerate(manager.agent_loop_workers):
            self._ask(_Call(index, worker, 0))

    def wait(self, timeout_seconds: float) -> list[EndedPrompt]:
        """Return what has ended since the last call; wait for it if that is nothing.

        Workers that have died are replaced. Raises RunFailedError if the run cannot go on without them.
        """
        found: list[EndedPrompt] = []
        calls = list(self._calls)
        ready, _ = ray.wait(calls, num_returns=1, timeout=timeout_seconds)
        if ready:
            ready, _ = ray.wait(calls, num_returns=len(calls), timeout=0)
        for reference in ready:
            found += self._answer(self._calls.pop(reference), reference)
        return found

    def _answer(self, call: _Call, reference: ObjectRef) -> Sequence[EndedPrompt]:
        """Return what a worker reports, and ask it for more."""
        try:
            ended: Sequence[EndedPrompt] = ray.get(reference)
        except LOSSES as error:
            replacement = self._manager.replace_worker(call.index, error)
            self._ask(_Call(call.index, replacement.worker, 0))
            return replacement.ended
        self._manager.forget(ended)
        self._ask(_Call(call.index, call.worker, call.position + len(ended)))
        return ended

    def _ask(self, call: _Call) -> None:
        self._calls[call.worker.ended_prompts.remote(call.position)] = call
