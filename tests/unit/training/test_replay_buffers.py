"""The replay buffer over a queue in memory, with reports of workers in a list."""

import copy
from typing import Any

import pytest
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import replay_buffer as verl_replay_buffer

from turnmill.rollout.worker import EndedPrompt
from turnmill.training import replay_buffers
from turnmill.training.replay_buffers import StepReplayBuffer
from turnmill.training.shared_tags import SharedTags

Tags = dict[str, dict[str, Any]]


class Queue:
    """A TransferQueue with keys and tags only, which counts how often its keys are listed."""

    def __init__(self) -> None:
        self.tags: Tags = {}
        self.num_lists = 0

    def kv_list(self) -> dict[str, Tags]:
        self.num_lists += 1
        return {"train": {key: dict(tags) for key, tags in self.tags.items()}}

    def kv_clear(self, *, partition_id: str, keys: list[str]) -> None:
        for key in keys:
            del self.tags[key]

    def end(self, uid: str, step: int) -> EndedPrompt:
        """Put a prompt whose two trajectories have ended; return the worker's report."""
        self.tags |= {f"{uid}_{sample}_0": {"status": "success", "seq_len": 3} for sample in range(2)}
        self.tags[uid] = {"is_prompt": True, "status": "finished", "global_steps": step}
        return EndedPrompt(uid, step, validation=False)


class Reports:
    """Ended prompts, reported call by call; each of them is put into the queue just before."""

    def __init__(self, queue: Queue, *calls: list[tuple[str, int]]) -> None:
        self.queue, self.calls = queue, list(calls)

    def wait(self, timeout_seconds: float) -> list[EndedPrompt]:
        if not timeout_seconds and not self.calls:
            return []
        return [self.queue.end(uid, step) for uid, step in self.calls.pop(0)]


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    queue = Queue()
    monkeypatch.setattr(verl_replay_buffer, "tq", queue)
    monkeypatch.setattr(replay_buffers, "tq", queue)
    return queue


def buffer(queue: Queue, *calls: list[tuple[str, int]]) -> StepReplayBuffer:
    made = StepReplayBuffer("sync", OmegaConf.create(), None, "drop", OmegaConf.create(), poll_interval=0.0)
    made.arrivals = Reports(queue, *calls)
    return made


def test_keys_are_listed_once_when_all_prompts_of_the_step_have_ended(queue):
    made = buffer(queue, [("a", 1)], [], [("b", 1), ("c", 1)])

    batch, _ = made.sample(1, "train", 3)

    assert sorted(batch.keys) == ["a_0_0", "a_1_0", "b_0_0", "b_1_0", "c_0_0", "c_1_0"]
    assert queue.num_lists == 1


def test_prompts_of_a_later_step_are_not_counted_and_wait_for_theirs(queue):
    made = buffer(queue, [("later", 2), ("a", 1)], [("b", 1)], [("last", 2)])

    first, _ = made.sample(1, "train", 2)
    second, _ = made.sample(2, "train", 2)

    assert sorted({key[0] for key in first.keys}) == ["a", "b"]
    assert sorted({key.partition("_")[0] for key in second.keys}) == ["last", "later"]


def test_rows_are_in_the_order_of_the_requests_and_not_of_their_arrival(queue):
    made = buffer(queue, [("prompt010", 1)], [("prompt009", 1)])
    queue.tags |= {f"prompt009_{sample}_{turn}": {"seq_len": 3} for sample in (10, 9) for turn in (10, 9)}

    batch, _ = made.sample(1, "train", 2)

    assert batch.keys == [
        *("prompt009_0_0", "prompt009_1_0", "prompt009_9_9", "prompt009_9_10", "prompt009_10_9", "prompt009_10_10"),
        *("prompt010_0_0", "prompt010_1_0"),
    ]


def test_replacements_are_waited_for_after_the_first_prompts(queue):
    made = buffer(queue, [("a", 1), ("b", 1)], [("c", 1)])

    made.sample(1, "train", 2)
    more, _ = made.sample(1, "train", 1)

    assert more.keys == ["c_0_0", "c_1_0"]


def test_a_replacement_that_has_ended_with_the_first_prompts_is_not_waited_for(queue):
    made = buffer(queue, [("a", 1), ("b", 1), ("c", 1)])

    first, _ = made.sample(1, "train", 2)
    more, _ = made.sample(1, "train", 1)

    assert sorted(first.keys + more.keys) == ["a_0_0", "a_1_0", "b_0_0", "b_1_0", "c_0_0", "c_1_0"]


def test_workers_are_asked_at_every_step_although_its_rows_are_there(queue):
    """A dead one is replaced then, and not only when the rows that are ahead have run out."""
    made = buffer(queue, [("a", 1), ("b", 2)], [("c", 3)])

    made.sample(1, "train", 1)
    made.sample(2, "train", 1)

    assert made.arrivals.calls == []


def test_engines_are_looked_after_while_nothing_arrives(queue):
    made, calls = buffer(queue, [], [], [("a", 1)]), []
    made.on_poll = lambda: calls.append("poll")

    made.sample(1, "train", 1)

    assert len(calls) >= 3


def test_batches_made_of_a_batch_share_its_tags_unless_one_is_copied_alone():
    tags = SharedTags([{"seq_len": 1}, {"seq_len": 2}])
    whole = KVBatchMeta(partition_id="train", keys=["a", "b"], tags=tags)

    again = KVBatchMeta(partition_id="train", keys=whole.keys, tags=whole.tags)

    assert again.tags is not tags
    assert all(one is other for one, other in zip(again.tags, tags, strict=True))
    assert copy.deepcopy(tags[0]) is not tags[0]
