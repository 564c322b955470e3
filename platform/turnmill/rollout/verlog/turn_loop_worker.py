"""Agent loop workers of verl's, with slots that stay with their worker."""

import asyncio
from contextlib import nullcontext
from typing import Any

import ray
from tensordict import TensorDict

from turnmill.rollout.verlog.slot import SlotState
from turnmill.rollout.verlog.turn_loop import TurnLoop
from turnmill.rollout.worker import LoopManager, LoopWorker

# More fill the engine's batches better, and each takes a process of 7 MB.
VALIDATION_EPISODES_AT_ONCE = 128


class TurnLoopWorker(LoopWorker):
    """Runs the agent loops of its slots and keeps their environments between steps."""

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.validation_slots = asyncio.Semaphore(max(self.job.spec.environment.count, VALIDATION_EPISODES_AT_ONCE))
        self.turn_loop = TurnLoop(**self.loop_arguments(config))

    async def run_row(self, sampling_params: dict[str, Any], *, validate: bool, **row: Any) -> None:
        """The slot's turns of a step, or an episode of validation."""
        async with self.validation_slots if validate else nullcontext():
            rows = await self.turn_loop.run(sampling_params, validate=validate, **row)
        await self._agent_loop_postprocess(rows, validate, **row)

    async def snapshot(self, after: int) -> list[SlotState]:
        """What it takes to carry every slot on after a step, in another process."""
        return [slot.snapshot(after) for slot in self.turn_loop.slots.values()]

    async def restore(self, states: list[SlotState]) -> None:
        """Carry slots on from a snapshot."""
        async with asyncio.TaskGroup() as group:
            for state in states:
                group.create_task(self.turn_loop.slot(state.index).restore(state))

    async def close(self) -> None:
        """End every environment process."""
        await self.turn_loop.close()


class TurnLoopManager(LoopManager):
    """Sends every slot to the worker that holds its environment."""

    worker_class = TurnLoopWorker

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Start the agent loops of these rows and return; their rows go to the TransferQueue."""
        slots = [int(slot) for slot in prompts["slot"]]
        by_worker: dict[int, list[int]] = {}
        for position, slot in enumerate(slots):
            by_worker.setdefault(slot % len(self.agent_loop_workers), []).append(position)
        ray.get(
            [
                self.agent_loop_workers[worker].generate_sequences.remote(prompts[positions])
                for worker, positions in by_worker.items()
            ]
        )

    def snapshot(self, after: int) -> list[SlotState]:
        """The state of every slot after a step."""
        parts = ray.get([worker.snapshot.remote(after) for worker in self.agent_loop_workers], timeout=60)
        return sorted((state for part in parts for state in part), key=lambda state: state.index)

    def restore(self, states: list[SlotState]) -> None:
        """Carry every slot on from a snapshot."""
        workers = self.agent_loop_workers
        parts = [[state for state in states if state.index % len(workers) == i] for i in range(len(workers))]
        ray.get([worker.restore.remote(part) for worker, part in zip(workers, parts, strict=True)], timeout=600)
