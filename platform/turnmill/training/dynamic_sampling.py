"""DAPO's dynamic sampling (arXiv:2503.14476): tasks whose trajectories all have the same reward are replaced."""

from typing import Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from turnmill.core.trajectory import EpisodeSummary
from turnmill.training.advantages.index import group_of, groups_with_different_rewards
from turnmill.training.batches.trajectory import DROPPED, Dropped, last_rows, read_summaries, split
from turnmill.training.dataset import select
from turnmill.training.replay_buffers import StepReplayBuffer
from turnmill.training.shared_tags import SharedTags

FILLED = "turnmill/dynamic_sampling/batches"
DROPPED_TASKS = "turnmill/dynamic_sampling/dropped_tasks"


class FilteringBuffer(ReplayBuffer):
    """Replaces tasks whose rewards are all the same, and whose advantages are therefore 0, up to `max_batches` times.

    Keys of failed trajectories are kept, so that they are counted, whether or not their task is replaced.
    """

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Return rows of tasks with different rewards; fewer tasks than `batch_size` after `max_batches` batches."""
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        if partition_id == "val":
            return batch, metrics
        kept, dropped = partition_groups(batch)
        filled = 1
        while (missing := batch_size - num_tasks(kept)) > 0 and filled < self.sampler_kwargs["max_batches"]:
            self.refill_fn(missing)
            more, _ = super().sample(global_steps, partition_id, missing)
            found, uniform = partition_groups(more)
            kept, dropped, filled = concatenate(kept, found), concatenate(dropped, uniform), filled + 1
        metrics |= {FILLED: float(filled), DROPPED_TASKS: float(num_tasks(dropped))}
        if not num_tasks(kept):
            # All groups are uniform, so training on them does not change the weights.
            return concatenate(kept, dropped), metrics
        if dropped.keys:
            kept.extra_info[DROPPED] = Dropped(num_tasks(dropped), read_summaries(dropped, EpisodeSummary))
            tq.kv_clear(keys=dropped.keys, partition_id=partition_id)
        return kept, metrics


class FilteringStepBuffer(FilteringBuffer, StepReplayBuffer):
    """Filters the rows that were requested for a step."""


def partition_groups(batch: KVBatchMeta) -> tuple[KVBatchMeta, KVBatchMeta]:
    """Return the rows of groups with different rewards and all failed trajectories, and the rows of uniform groups."""
    parts = split(batch)
    if not parts.survivors.keys:
        return batch, parts.survivors
    keys = parts.survivors.keys
    rewards = (summary.reward for summary in read_summaries(parts.survivors, EpisodeSummary))
    differ = groups_with_different_rewards((group_of(keys[row]) for row in last_rows(keys)), rewards)
    failed = set(parts.failed.keys)
    is_kept = [key in failed or group_of(key) in differ for key in batch.keys]
    return select(batch, is_kept), select(batch, [not each for each in is_kept])


def num_tasks(batch: KVBatchMeta) -> int:
    """Return the number of tasks that have a trajectory that did not fail."""
    return len({group_of(key) for key in split(batch).survivors.keys})


def concatenate(one: KVBatchMeta, other: KVBatchMeta) -> KVBatchMeta:
    """Return a batch with the rows of both."""
    return KVBatchMeta(
        partition_id=one.partition_id,
        keys=[*one.keys, *other.keys],
        tags=SharedTags([*one.tags, *other.tags]),
        extra_info=dict(one.extra_info),
    )
