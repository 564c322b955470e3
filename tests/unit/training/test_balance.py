"""The order in which rows are dealt to workers, against verl's."""

import random
from types import SimpleNamespace

import pytest
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from turnmill.training.trainers.base import RunTrainer


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
