"""Numbers of models that return bfloat16: nothing is computed in that."""

import pytest
import torch
from torch import Tensor

from turnmill.jobs.algorithm import AlgorithmSettings
from turnmill.jobs.settings import PLUGIN
from turnmill.jobs.values import sections_in, tag_of
from turnmill.training.advantages.estimators import state_advantages
from turnmill.training.advantages.gae import dual_discount_gae, whiten
from turnmill.training.algorithms import algorithm_class, trajectory_algorithm_of
from turnmill.training.algorithms.base import TrajectoryAlgorithm
from turnmill.training.grl.scores import normalise

SETTINGS = [section for section in sections_in(AlgorithmSettings) if tag_of(section) != PLUGIN]
OF_TRAJECTORIES = [s for s in SETTINGS if issubclass(algorithm_class(tag_of(s)), TrajectoryAlgorithm)]
MAX_ERROR = 1e-5


def relative_rms(result: Tensor, exact: Tensor) -> float:
    """Root mean square of the difference, relative to that of the exact values."""
    return float((result.double() - exact).pow(2).mean().sqrt() / exact.pow(2).mean().sqrt())


def random_bf16(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


@pytest.mark.parametrize("settings", OF_TRAJECTORIES, ids=tag_of)
def test_advantages_of_bf16_values_are_as_exact_as_those_of_the_same_values_in_float64(settings):
    algorithm = trajectory_algorithm_of(settings())
    mask = torch.ones(16, 300)
    mask[:, 250:] = 0
    rewards = random_bf16(16, 300, seed=0) * (torch.arange(300) == 249)
    values = random_bf16(16, 300, seed=1)
    groups = [f"group{index // 4}" for index in range(16)]

    advantages, returns = algorithm.estimate(rewards, mask.to(torch.bfloat16), groups, values)
    exact_advantages, exact_returns = algorithm.estimate(rewards.double(), mask.double(), groups, values.double())

    assert advantages.dtype == returns.dtype == torch.float32
    assert relative_rms(advantages, exact_advantages) <= MAX_ERROR
    assert relative_rms(returns, exact_returns) <= MAX_ERROR


@pytest.mark.parametrize("token_gamma", [1.0, 0.99])
def test_advantages_of_turns_are_exact_from_bf16_values(token_gamma: float):
    turns, environments, tokens = 32, 4, 40
    rows = turns + environments
    values, rewards = random_bf16(rows, tokens, seed=0), torch.zeros(rows, tokens)
    rewards[:turns, -1] = random_bf16(turns, seed=1).float()
    mask, dones = torch.ones(rows, tokens), torch.zeros(rows)

    def estimate(values: Tensor, rewards: Tensor) -> tuple[Tensor, Tensor]:
        return dual_discount_gae(
            rewards,
            values,
            mask,
            dones,
            num_environments=environments,
            token_gamma=token_gamma,
            token_lambda=0.95,
            step_gamma=0.99,
            step_lambda=0.95,
        )

    for result, exact in zip(estimate(values, rewards), estimate(values.double(), rewards.double()), strict=True):
        assert result.dtype == torch.float32
        assert relative_rms(result, exact) <= MAX_ERROR


def test_bf16_advantages_are_whitened_exactly():
    advantages, mask = random_bf16(64, 100, seed=0) + 3, torch.ones(64, 100)

    assert relative_rms(whiten(advantages, mask), whiten(advantages.double(), mask)) <= MAX_ERROR


@pytest.mark.parametrize("normalised", [True, False])
def test_advantages_of_turns_that_began_in_the_same_state_are_exact_from_bf16_rewards(normalised: bool):
    rewards, states = random_bf16(96, seed=0) + 3, [f"state{turn % 7}" for turn in range(96)]
    episodes = [list(range(first, first + 8)) for first in range(0, 96, 8)]

    def estimate(rewards: Tensor) -> Tensor:
        return state_advantages(rewards, episodes, states, gamma=0.95, normalise=normalised)

    assert estimate(rewards).dtype == torch.float32
    assert relative_rms(estimate(rewards), estimate(rewards.double())) <= MAX_ERROR


@pytest.mark.parametrize("method", ["mean", "mean_std"])
def test_scores_of_groups_of_agents_are_exact_from_bf16_rewards(method: str):
    rewards, groups = random_bf16(64, seed=0) + 3, [episode // 8 for episode in range(64)]

    found = normalise(rewards, groups, method)

    assert found.dtype == torch.float32
    assert relative_rms(found, normalise(rewards.double(), groups, method)) <= MAX_ERROR
