"""The batch of a step on its way through the trainer, against verl's."""

import random
from concurrent.futures import Future
from threading import Event, Timer
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from support.row_queue import RowQueue
from turnmill.training.batches import ragged
from turnmill.training.shared_tags import SharedTags
from turnmill.training.trainers import trajectory
from turnmill.training.trainers.base import RunTrainer
from turnmill.training.trainers.trajectory import TrajectoryTrainerSync


@pytest.mark.parametrize("num_workers", [1, 2, 8])
@pytest.mark.parametrize("spread", [3, 2000], ids=["many rows of one length", "rows of any length"])
def test_rows_are_dealt_in_the_order_of_verl(num_workers: int, spread: int):
    chance = random.Random(num_workers)
    lengths = [chance.randrange(1, 1 + spread) for _ in range(64)]
    found, expected = {}, {}

    def balanced(balance, metrics) -> list[str]:
        batch = KVBatchMeta(
            keys=[f"task_{row}_0" for row in range(64)], tags=[{"seq_len": each} for each in lengths],
            partition_id="train",
        )  # fmt: skip
        trainer = SimpleNamespace(
            actor_rollout_wg=SimpleNamespace(
                _dispatch_info={}, _query_dispatch_info=lambda role: [*range(num_workers)]
            ),
            tokenizer=SimpleNamespace(eos_token_id=0),
            _get_required_batch_multiple=lambda size: size,
        )
        return balance(trainer, batch, metrics).keys

    assert balanced(RunTrainer._balance_batch, found) == balanced(PPOTrainer._balance_batch, expected)
    assert found == expected
    assert found


@pytest.mark.parametrize("with_critic", [True, False])
@pytest.mark.parametrize("corrected", [True, False])
def test_padding_has_zeros_in_the_columns_that_the_update_reads(monkeypatch, with_critic: bool, corrected: bool):
    queue = RowQueue()
    monkeypatch.setattr(ragged, "tq", queue)
    for row, is_padding in enumerate([False, True, True]):
        queue.add(f"task_{row}_0", tags={"is_padding": is_padding}, responses=[5] * (row + 1))
    trainer = TrajectoryTrainerSync.__new__(TrajectoryTrainerSync)
    trainer.algorithm = SimpleNamespace(constant_over_row=True)
    trainer.config = OmegaConf.create(
        {
            "algorithm": {
                "use_kl_in_reward": False,
                "rollout_correction": {"rollout_is": "token" if corrected else None},
            },
            "critic": {"enable": with_critic},
            "actor_rollout_ref": {"rollout": {}, "model": {}},
        }
    )

    trainer._fill_padding(queue.meta())

    names = {"advantages", "returns", "token_level_rewards"} if with_critic else set()
    names |= {"rollout_is_weights"} if corrected else set()
    columns = [
        {name: value.tolist() for name, value in queue.rows[f"task_{row}_0"].items() if name != "responses"}
        for row in range(3)
    ]
    assert columns == [{}, dict.fromkeys(names, [0.0] * 2), dict.fromkeys(names, [0.0] * 3)]


def test_a_step_returns_the_rows_with_their_tags_and_weighs_its_metrics_as_verl_does(monkeypatch):
    tags = SharedTags({"seq_len": row, "is_padding": row == 3} for row in range(4))
    trained = KVBatchMeta(keys=[f"task_{row}_0" for row in range(4)], tags=tags, partition_id="train")
    weights: list[int] = []
    noted: dict[str, float] = {}

    def train(self, metrics: dict[str, float], *_: object) -> KVBatchMeta:
        metrics["actor/loss"] = 0.1
        self._described = Future()
        self._described.set_result({"turnmill/turns": 3.0})
        return trained

    def note(self, metrics: dict[str, float], sample_count: int) -> None:
        weights.append(sample_count)
        noted.update(metrics)

    monkeypatch.setattr(PPOTrainer, "_step_once", train)
    monkeypatch.setattr(trainer_base.MetricsAggregator, "add_step_metrics", note)
    trainer = TrajectoryTrainerSync.__new__(TrajectoryTrainerSync)
    trainer.config = OmegaConf.create({"data": {"train_batch_size": 1}})
    trainer.parameter_sync_step, trainer.prepare_step = 1, lambda: {}

    found = trainer.step({}, {})

    assert found.keys == trained.keys
    assert all(tag is known for tag, known in zip(found.tags, tags, strict=True))
    assert weights == [3]
    assert noted == {"actor/loss": 0.1, "turnmill/turns": 3.0}


@pytest.mark.parametrize(("step", "waits"), [(1, False), (2, True)])
def test_rows_are_cleared_beside_the_next_rollout_and_before_the_end_of_the_run(monkeypatch, step: int, waits: bool):
    may_clear, cleared = Event(), []

    def clear(batch: KVBatchMeta) -> None:
        may_clear.wait(10)
        cleared.extend(batch.keys)

    monkeypatch.setattr(trajectory, "clear", clear)
    monkeypatch.setattr(PPOTrainer, "_step_once", lambda self, *_: pytest.fail("not reached") if not cleared else batch)
    trainer = TrajectoryTrainerSync.__new__(TrajectoryTrainerSync)
    trainer.config, trainer.global_steps, trainer.total_training_steps = OmegaConf.create({"trainer": {}}), step, 2
    batch = KVBatchMeta(keys=["a_0_0", "b_0_0"], tags=[{}, {}], partition_id="train")
    if waits:
        Timer(0.2, may_clear.set).start()

    trainer._clear_all_but_one(batch)

    assert batch.keys == ["a_0_0"]
    assert cleared == (["b_0_0"] if waits else [])
    may_clear.set()
    trainer._described, trainer._trained = Future(), SharedTags()
    trainer._described.set_result({})
    trainer._step_once({}, {}, 1)
    assert cleared == ["b_0_0"]
