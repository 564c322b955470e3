"""Workers that keep environment slots from step to step, and their manager."""

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Unpack

import ray
from tensordict import TensorDict

from turnmill.rollout.journal import create_journal
from turnmill.rollout.row_tags import tag_rows
from turnmill.rollout.trajectory_worker import TrajectoryManager, wait_for
from turnmill.rollout.verl_types import ActorHandle, BatchRow, RunConfig, SamplingParams
from turnmill.rollout.verlog.slot import SlotState
from turnmill.rollout.verlog.turn_loop import TurnLoop
from turnmill.rollout.worker import EndedPrompt, LoopWorker, job_of

# Validation episodes at once: more fill the engine's batches better, and each has a process of 7 MB.
MAX_VALIDATION_EPISODES = 128

BEFORE = -1
"""Step of the state with which the manager begins."""


@dataclass(frozen=True, slots=True)
class EndedSegment(EndedPrompt):
    """The end of a slot's turns of a step."""

    state: SlotState
    """The slot after them."""


class TurnLoopWorker(LoopWorker):
    """Runs the agent loops of its slots, whose environments it keeps between steps."""

    def __init__(self, config: RunConfig, *args: object, **kwargs: object) -> None:
        super().__init__(config, *args, **kwargs)
        self.validation_limit = asyncio.Semaphore(max(self.job.spec.environment.count, MAX_VALIDATION_EPISODES))
        self.turn_loop = TurnLoop(**self.loop_arguments(config), journal=create_journal(config))

    async def run_row(self, sampling_params: SamplingParams, *, validate: bool, **row: Unpack[BatchRow]) -> None:
        """Play a slot's turns of a step, or an episode of a validation, and put its rows into the queue."""
        async with self.validation_limit if validate else nullcontext():
            rows = await self.turn_loop.run(sampling_params, validate=validate, **row)
        if validate:
            await tag_rows(rows, validate=validate, **row)
        await self._agent_loop_postprocess(rows, validate, **row)

    def end_of_segment(self, ended: EndedPrompt, slot: int) -> EndedPrompt:
        """Return the end of a slot's turns with the state of the slot."""
        ends = {} if ended.validation else self.turn_loop.slot(slot).segment_ends
        return EndedSegment(ended.uid, ended.step, False, ends.pop(ended.step)) if ended.step in ends else ended

    async def restore(self, states: Sequence[SlotState]) -> None:
        """Restore slots."""
        async with asyncio.TaskGroup() as group:
            for state in states:
                group.create_task(self.turn_loop.slot(state.index).restore(state))

    async def close(self) -> None:
        """End every environment process, and close the journal."""
        await self.turn_loop.close()


class TurnLoopManager(TrajectoryManager):
    """Sends each slot to the worker that has its environment.

    In place of a worker that dies, another one replays the episodes of its slots, and goes on with their turns.
    """

    worker_class = TurnLoopWorker

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        # The next checkpoint is of a step that rollout is at most so far ahead of.
        self._num_states = job_of(self.config).spec.training.max_staleness + 2
        self._states: dict[int, dict[int, SlotState]] = {}
        """Last states of each slot, by the step that had ended."""

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Start the agent loops of a batch and return; rows are put into the TransferQueue."""
        slots = [int(slot) for slot in prompts["slot"]]
        by_worker: dict[int, list[int]] = {}
        for position, slot in enumerate(slots):
            by_worker.setdefault(self._worker_of(slot), []).append(position)
        calls = []
        for worker, positions in by_worker.items():
            chunk = prompts[positions]
            self._in_flight.add(worker, chunk)
            calls.append(self.agent_loop_workers[worker].generate_sequences.remote(chunk))
        wait_for(calls)

    def forget(self, ended: Sequence[EndedPrompt]) -> None:
        """Forget prompts whose end a worker has reported, and remember the state of their slots."""
        super().forget(ended)
        for segment in ended:
            if isinstance(segment, EndedSegment):
                states = self._states.setdefault(segment.state.index, {})
                states[segment.step] = segment.state
                for old in sorted(states)[: -self._num_states]:
                    del states[old]

    def can_go_on_after(self, ended: Sequence[EndedPrompt]) -> bool:
        """Return False if the state of a slot is not known."""
        return all(prompt.validation for prompt in ended)

    def snapshot(self, after: int) -> list[SlotState]:
        """Return the state of every slot after a step, in the order of their indices."""
        return [
            states[max(step for step in states if step <= after)]
            for _, states in sorted(self._states.items())
            if min(states) <= after
        ]

    def restore(self, states: Sequence[SlotState]) -> None:
        """Restore all slots from a snapshot, each in its worker."""
        self._states = {state.index: {BEFORE: state} for state in states}
        workers = enumerate(self.agent_loop_workers)
        ray.get([worker.restore.remote(self._last_states(index)) for index, worker in workers], timeout=600)

    def _new_worker(self, index: int) -> ActorHandle:
        worker = super()._new_worker(index)
        wait_for([worker.restore.remote(self._last_states(index))])
        return worker

    def _worker_of(self, slot: int) -> int:
        return slot % len(self.agent_loop_workers)

    def _last_states(self, index: int) -> list[SlotState]:
        """Return the last states of a worker's slots."""
        return [states[max(states)] for slot, states in self._states.items() if self._worker_of(slot) == index]
