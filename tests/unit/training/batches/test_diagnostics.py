import math

import pytest
import torch

from turnmill.training.batches.diagnostics import advantage_spread, by_outcome
from turnmill.training.response_columns import engine_kl


def test_the_spread_of_advantages_covers_trained_tokens():
    advantages_RG = torch.tensor([[1.0, -1.0, 50.0], [3.0, 9.0, 9.0]])
    mask_RG = torch.tensor([[1, 1, 0], [1, 0, 0]])

    assert advantage_spread(advantages_RG, mask_RG) == {"critic/advantages/std": pytest.approx(2.0)}
    assert advantage_spread(torch.zeros(2, 3), mask_RG) == {"critic/advantages/std": 0.0}


def test_one_trained_token_has_no_spread():
    assert advantage_spread(torch.ones(1, 2), torch.tensor([[1, 0]])) == {}


def test_an_outcome_without_episodes_has_no_mean():
    assert by_outcome("length", [True, True], [6.0, 3.0], [2, 1]) == {"length_solved": 3.0}
    assert by_outcome("length", [True, False, False], [6, 3, 2]) == {"length_solved": 6.0, "length_unsolved": 2.5}
    assert by_outcome("length", [False], [0.0], [0]) == by_outcome("length", [], []) == {}


def test_the_kl_of_engine_and_trainer_covers_trained_tokens():
    engine, trainer = torch.log(torch.tensor([[0.5, 0.5, 0.9]])), torch.log(torch.tensor([[0.25, 0.5, 0.1]]))

    found = engine_kl(trainer, engine, torch.tensor([[1, 1, 0]]))

    assert found["rollout_corr/kl"] == pytest.approx(math.log(2) / 2)
    # r - log(r) - 1 with r = 1/2 and 1.
    assert found["rollout_corr/k3_kl"] == pytest.approx((0.5 + math.log(2) - 1) / 2)


def test_a_batch_without_trained_tokens_has_no_kl():
    assert engine_kl(torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(1, 2, dtype=torch.long)) == {}
