"""Workers that keep environment slots from step to step, and their manager."""

import asyncio
from contextlib import nullcontext
from typing import Unpack

import ray
from ray.exceptions import RayError
from tensordict import TensorDict

from turnmill.rollout.actor_deaths import LOSSES
from turnmill.rollout.row_tags import tag_rows
from turnmill.rollout.verl_types import BatchRow, RunConfig, SamplingParams
from turnmill.rollout.verlog.slot import SlotState
from turnmill.rollout.verlog.turn_loop import TurnLoop
from turnmill.rollout.worker import LoopManager, LoopWorker, Replacement

# Validation episodes at once: more fill the engine's batches better, and each has a process of 7 MB.
MAX_VALIDATION_EPISODES = 128


class TurnLoopWorker(LoopWorker):
    """Runs the agent loops of its slots, whose environments it keeps between steps."""

    def __init__(self, config: RunConfig, *args: object, **kwargs: object) -> None:
        super().__init__(config, *args, **kwargs)
        self.validation_limit = asyncio.Semaphore(max(self.job.spec.environment.count, MAX_VALIDATION_EPISODES))
        self.turn_loop = TurnLoop(**self.loop_arguments(config))

    async def run_row(self, sampling_params: SamplingParams, *, validate: bool, **row: Unpack[BatchRow]) -> None:
        """Play a slot's turns of a step, or an episode of a validation, and put its rows into the queue."""
        async with self.validation_limit if validate else nullcontext():
            rows = await self.turn_loop.run(sampling_params, validate=validate, **row)
        if validate:
            await tag_rows(rows, validate=validate, **row)
        await self._agent_loop_postprocess(rows, validate, **row)

    async def snapshot(self, after: int) -> list[SlotState]:
        """Return the state of every slot after a step."""
        return [slot.snapshot(after) for slot in self.turn_loop.slots.values()]

    async def restore(self, states: list[SlotState]) -> None:
        """Restore slots from a snapshot."""
        async with asyncio.TaskGroup() as group:
            for state in states:
                group.create_task(self.turn_loop.slot(state.index).restore(state))

    async def close(self) -> None:
        """End every environment process."""
        await self.turn_loop.close()


class TurnLoopManager(LoopManager):
    """Sends each slot to the worker that has its environment."""

    worker_class = TurnLoopWorker

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Start the agent loops of a batch and return; rows are put into the TransferQueue."""
        slots = [int(slot) for slot in prompts["slot"]]
        by_worker: dict[int, list[int]] = {}
        for position, slot in enumerate(slots):
            by_worker.setdefault(slot % len(self.agent_loop_workers), []).append(position)
        try:
            ray.get(
                [
                    self.agent_loop_workers[worker].generate_sequences.remote(prompts[positions])
                    for worker, positions in by_worker.items()
                ]
            )
        except LOSSES as error:
            raise self.death_of_worker(error) from error

    def replace_worker(self, index: int, error: RayError) -> Replacement:
        """Raise RunFailedError: the environments of its slots have died with it."""
        raise self.death_of_worker(error) from error

    def snapshot(self, after: int) -> list[SlotState]:
        """Return the state of every slot after a step, in the order of their indices."""
        parts = ray.get([worker.snapshot.remote(after) for worker in self.agent_loop_workers], timeout=60)
        return sorted((state for part in parts for state in part), key=lambda state: state.index)

    def restore(self, states: list[SlotState]) -> None:
        """Restore all slots from a snapshot, each in its worker."""
        workers = self.agent_loop_workers
        parts = [[state for state in states if state.index % len(workers) == i] for i in range(len(workers))]
        ray.get([worker.restore.remote(part) for worker, part in zip(workers, parts, strict=True)], timeout=600)
