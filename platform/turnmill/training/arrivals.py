"""Prompts whose trajectories have ended, as the agent loop workers report them.

So the trainer waits for its rows without asking the queue for all keys again and again.
"""

from collections.abc import Sequence

import ray
from ray import ObjectRef
from ray.exceptions import RayError

from turnmill.rollout.verl_types import ActorHandle
from turnmill.rollout.worker import EndedPrompt


class Arrivals:
    """Reports of ended prompts from all workers, each of which has one call waiting for its next ones."""

    def __init__(self, workers: Sequence[ActorHandle]) -> None:
        self._calls = {self._ask(worker, 0): (worker, 0) for worker in workers}

    def wait(self, timeout_seconds: float) -> list[EndedPrompt]:
        """Return what has ended since the last call; wait for it if that is nothing."""
        found: list[EndedPrompt] = []
        calls = list(self._calls)
        ready, _ = ray.wait(calls, num_returns=1, timeout=timeout_seconds)
        if ready:
            ready, _ = ray.wait(calls, num_returns=len(calls), timeout=0)
        for call in ready:
            worker, position = self._calls.pop(call)
            try:
                ended = ray.get(call)
            except RayError:
                # The worker died; its manager ends the run.
                continue
            found += ended
            position += len(ended)
            self._calls[self._ask(worker, position)] = (worker, position)
        return found

    @staticmethod
    def _ask(worker: ActorHandle, position: int) -> ObjectRef:
        return worker.ended_prompts.remote(position)
