from typing import Any

import pytest
from transfer_queue import KVBatchMeta

from turnmill.core.trajectory import EpisodeSummary
from turnmill.rollout.failure import FAILED
from turnmill.rollout.queue_payload import encode
from turnmill.rollout.row_tags import EPISODE
from turnmill.training import dynamic_sampling
from turnmill.training.batches.trajectory import Dropped, split
from turnmill.training.dynamic_sampling import DROPPED_TASKS, FILLED, FilteringBuffer


def summary(reward: float) -> EpisodeSummary:
    return EpisodeSummary(episode_id="t", reward=reward, stop_reason="completed", success=reward > 0, num_turns=1)


class Queue:
    """A TransferQueue that records which keys are cleared."""

    def __init__(self) -> None:
        self.cleared: list[str] = []

    def kv_clear(self, *, keys: list[str], partition_id: str) -> None:
        self.cleared += keys


class Groups(dynamic_sampling.ReplayBuffer):
    """A replay buffer that returns the given groups in order, without a queue."""

    def __init__(self, groups: list[list[float | None]], max_batches: int) -> None:
        self.groups, self.sampler_kwargs = list(groups), {"max_batches": max_batches}
        self.refills: list[int] = []
        self._next = 0

    def refill_fn(self, number: int) -> None:
        self.refills.append(number)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        keys, tags = [], []
        for _ in range(batch_size):
            for sample, reward in enumerate(self.groups.pop(0)):
                key = f"task{self._next}_{sample}_0"
                keys.append(key)
                failed = {"status": FAILED}
                tags.append(failed if reward is None else {"status": "success", EPISODE: encode(summary(reward))})
            self._next += 1
        return KVBatchMeta(partition_id=partition_id, keys=keys, tags=tags), {}


class Buffer(FilteringBuffer, Groups):
    """The filtering buffer over groups from a list."""


@pytest.fixture
def queue(monkeypatch) -> Queue:
    queue = Queue()
    monkeypatch.setattr(dynamic_sampling, "tq", queue)
    return queue


MIXED, ALL_RIGHT, ALL_WRONG = [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]


def sample_tasks(buffer: Buffer, batch_size: int) -> tuple[list[str], dict[str, Any]]:
    batch, metrics = buffer.sample(1, "train", batch_size)
    return sorted({key.rpartition("_")[0].rpartition("_")[0] for key in batch.keys}), metrics


def test_groups_with_uniform_rewards_are_replaced_by_other_tasks(queue):
    buffer = Buffer([MIXED, ALL_RIGHT, ALL_WRONG, MIXED, ALL_RIGHT, MIXED], max_batches=4)

    tasks, metrics = sample_tasks(buffer, 3)

    assert tasks == ["task0", "task3", "task5"]
    assert buffer.refills == [2, 1]
    assert (metrics[FILLED], metrics[DROPPED_TASKS]) == (3, 3)
    assert queue.cleared == [f"task{task}_{sample}_0" for task in (1, 2, 4) for sample in (0, 1)]


def test_a_step_is_smaller_when_the_batch_limit_is_reached(queue):
    buffer = Buffer([MIXED, ALL_RIGHT, ALL_RIGHT, ALL_RIGHT], max_batches=2)

    tasks, metrics = sample_tasks(buffer, 2)

    assert (tasks, metrics[FILLED]) == (["task0"], 2)


def test_a_step_with_only_uniform_groups_is_kept_unfiltered(queue):
    buffer = Buffer([ALL_RIGHT, ALL_WRONG], max_batches=1)

    tasks, _ = sample_tasks(buffer, 2)

    assert tasks == ["task0", "task1"]
    assert queue.cleared == []


def test_failed_trajectories_of_dropped_tasks_are_counted(queue):
    buffer = Buffer([[1.0, None], [1.0, 0.0], [0.0, 1.0]], max_batches=2)

    batch, _ = buffer.sample(1, "train", 2)
    parts = split(batch)

    # The other trajectory of the first task has no group left to be compared with.
    assert (len(parts.survivors.keys), len(parts.failed.keys)) == (4, 1)
    assert parts.dropped == Dropped(num_tasks=1, summaries=(summary(1.0),))
    assert (parts.num_trajectories, parts.failed_ratio) == (6, 1 / 6)


def test_validations_are_not_filtered(queue):
    buffer = Buffer([ALL_RIGHT], max_batches=4)

    batch, _ = buffer.sample(1, "val", 1)

    assert len(batch.keys) == 2
