from typing import Any

import pytest
from transfer_queue import KVBatchMeta

from turnmill.core.trajectory import EpisodeSummary
from turnmill.rollout.failure import FAILED
from turnmill.rollout.queue_payload import EPISODE_SUMMARY, encode
from turnmill.training import dynamic_sampling
from turnmill.training.batches import trajectory
from turnmill.training.batches.trajectory import Dropped, split
from turnmill.training.dynamic_sampling import DROPPED_TASKS, FILLED, FilteringBuffer

ROWS: dict[str, float] = {}
"""The rewards of the rows that stand in the queue."""


def summary(reward: float) -> EpisodeSummary:
    return EpisodeSummary(episode_id="t", reward=reward, stop_reason="completed", success=reward > 0, num_turns=1)


class Queue:
    """What the buffer asks the TransferQueue."""

    def __init__(self) -> None:
        self.cleared: list[str] = []

    def kv_batch_get(self, *, keys: list[str], **_: Any) -> dict[str, Any]:
        return {EPISODE_SUMMARY: [encode(summary(ROWS[key])) for key in keys]}

    def kv_clear(self, *, keys: list[str], partition_id: str) -> None:
        self.cleared += keys


class Groups(dynamic_sampling.ReplayBuffer):
    """Hands out groups as they are asked for, without a queue behind it."""

    def __init__(self, groups: list[list[float | None]], max_batches: int) -> None:
        self.groups, self.sampler_kwargs = list(groups), {"max_batches": max_batches}
        self.asked: list[int] = []
        self._next = 0

    def refill_fn(self, number: int) -> None:
        self.asked.append(number)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        keys, tags = [], []
        for _ in range(batch_size):
            for sample, reward in enumerate(self.groups.pop(0)):
                key = f"task{self._next}_{sample}_0"
                keys.append(key)
                tags.append({"status": FAILED if reward is None else "success"})
                ROWS[key] = reward or 0.0
            self._next += 1
        return KVBatchMeta(partition_id=partition_id, keys=keys, tags=tags), {}


class Buffer(FilteringBuffer, Groups):
    """The filter over groups from a list."""


@pytest.fixture
def queue(monkeypatch) -> Queue:
    queue = Queue()
    monkeypatch.setattr(dynamic_sampling, "tq", queue)
    monkeypatch.setattr(trajectory, "tq", queue)
    return queue


GOOD, ALL_RIGHT, ALL_WRONG = [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]


def sampled(buffer: Buffer, batch_size: int) -> tuple[list[str], dict[str, Any]]:
    batch, metrics = buffer.sample(1, "train", batch_size)
    return sorted({key.rpartition("_")[0].rpartition("_")[0] for key in batch.keys}), metrics


def test_tasks_that_teach_nothing_make_room_for_others(queue):
    buffer = Buffer([GOOD, ALL_RIGHT, ALL_WRONG, GOOD, ALL_RIGHT, GOOD], max_batches=4)

    tasks, metrics = sampled(buffer, 3)

    assert tasks == ["task0", "task3", "task5"]
    assert buffer.asked == [2, 1]
    assert (metrics[FILLED], metrics[DROPPED_TASKS]) == (3, 3)
    assert queue.cleared == [f"task{task}_{sample}_0" for task in (1, 2, 4) for sample in (0, 1)]


def test_a_step_does_without_what_was_not_found_in_time(queue):
    buffer = Buffer([GOOD, ALL_RIGHT, ALL_RIGHT, ALL_RIGHT], max_batches=2)

    tasks, metrics = sampled(buffer, 2)

    assert (tasks, metrics[FILLED]) == (["task0"], 2)


def test_a_step_in_which_nothing_teaches_is_taken_as_it_is(queue):
    buffer = Buffer([ALL_RIGHT, ALL_WRONG], max_batches=1)

    tasks, _ = sampled(buffer, 2)

    assert tasks == ["task0", "task1"]
    assert queue.cleared == []


def test_failed_trajectories_are_counted_whatever_becomes_of_their_task(queue):
    buffer = Buffer([[1.0, None], [1.0, 0.0], [0.0, 1.0]], max_batches=2)

    batch, _ = buffer.sample(1, "train", 2)
    parts = split(batch)

    # The survivor of the first task has nothing to be compared with.
    assert (len(parts.survivors.keys), len(parts.failed.keys)) == (4, 1)
    assert parts.dropped == Dropped(num_tasks=1, summaries=(summary(1.0),))
    assert (parts.num_trajectories, parts.failed_ratio) == (6, 1 / 6)


def test_validations_are_not_sifted(queue):
    buffer = Buffer([ALL_RIGHT], max_batches=4)

    batch, _ = buffer.sample(1, "val", 1)

    assert len(batch.keys) == 2
