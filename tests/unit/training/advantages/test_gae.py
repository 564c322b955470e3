import json
from pathlib import Path

import pytest
import torch

from turnmill.training.advantages.gae import dual_discount_gae, whiten

VECTORS = json.loads((Path(__file__).parent / "gae_vectors.json").read_text())
VALUES = torch.tensor([[0.50, 0.52, 0.55, 0.60], [0.70, 0.75, 0.80, 0.0], [0.30, 0.0, 0.0, 0.0]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]])
CASES = {
    "A": ((0, 1, 0), {(1, 1): 1.0}),
    "B": ((0, 0, 0), {}),
    "C": ((1, 0, 0), {(0, 2): 1.0}),
}


def reference(rewards, values, mask, dones, *, num_environments, token_gamma, token_lambda, step_gamma, step_lambda):
    """The definition, slot by slot, one environment after the other."""
    rows, tokens = values.shape
    turns = rows // num_environments - 1
    advantages = torch.zeros_like(values)
    for environment in range(num_environments):
        next_value, running = values[turns * num_environments + environment, 0], 0.0
        for t in reversed(range(turns)):
            row = t * num_environments + environment
            gamma, lam, done = step_gamma, step_lambda, float(dones[row])
            running *= 1 - done
            for i in reversed(range(tokens)):
                if i and not mask[row, i - 1]:
                    continue
                delta = rewards[row, i] + gamma * next_value * (1 - done) - values[row, i]
                running = delta + gamma * lam * running
                next_value, done, gamma, lam = values[row, i], 0.0, token_gamma, token_lambda
                advantages[row, i] = running
    return advantages, advantages + values


@pytest.mark.feature("Verlog", "GAE with two discounts")
@pytest.mark.parametrize("name", sorted(VECTORS))
def test_advantages_equal_the_published_vectors(name):
    case, combination = name.split(" | ")
    dones, rewarded = CASES[case[0]]
    discounts = [float(x) for x in combination.split("=")[1].strip("()").split(",")]
    rewards = torch.zeros_like(VALUES)
    for (row, slot), reward in rewarded.items():
        rewards[row, slot] = reward

    advantages, returns = dual_discount_gae(
        rewards,
        VALUES,
        MASK,
        torch.tensor(dones),
        num_environments=1,
        **dict(zip(("token_gamma", "token_lambda", "step_gamma", "step_lambda"), discounts, strict=True)),
    )

    torch.testing.assert_close(
        advantages, torch.tensor(VECTORS[name]["raw_adv"], dtype=torch.float64), atol=1e-6, rtol=0
    )
    torch.testing.assert_close(returns, torch.tensor(VECTORS[name]["returns"], dtype=torch.float64), atol=1e-6, rtol=0)
    whitened = torch.tensor(VECTORS[name]["whitened"], dtype=torch.float64)
    torch.testing.assert_close(whiten(advantages, MASK), whitened, atol=2e-6, rtol=1e-6)


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_many_environments_match_the_definition(seed, holes):
    generator = torch.Generator().manual_seed(seed)
    environments, turns, tokens = 3, 4, 7
    rows = environments * (turns + 1)
    lengths = torch.randint(0, tokens + 1, (rows, 1), generator=generator)
    mask = torch.arange(tokens) < lengths
    if holes:
        mask &= torch.rand(rows, tokens, generator=generator) > 0.4
    mask[-environments:] = False
    values = torch.rand(rows, tokens, generator=generator, dtype=torch.float64)
    rewards = torch.rand(rows, tokens, generator=generator, dtype=torch.float64)
    dones = (torch.rand(rows, generator=generator) < 0.3).long()
    settings = {"num_environments": environments, "token_gamma": 0.9, "token_lambda": 0.8, "step_gamma": 0.99}

    actual = dual_discount_gae(rewards, values, mask, dones, **settings, step_lambda=0.95)

    expected = reference(rewards, values, mask, dones, **settings, step_lambda=0.95)
    torch.testing.assert_close(actual, expected)


@pytest.mark.feature("Verlog", "the end of an episode")
def test_advantages_do_not_leak_across_the_end_of_an_episode():
    values, mask = VALUES.clone(), MASK
    settings = {"num_environments": 1, "token_gamma": 1.0, "token_lambda": 1.0, "step_gamma": 0.9, "step_lambda": 0.9}
    rewards = torch.zeros_like(values)
    before, _ = dual_discount_gae(rewards, values, mask, torch.tensor([1, 0, 0]), **settings)

    rewards[1] += 5.0
    values[2] += 5.0
    after, _ = dual_discount_gae(rewards, values, mask, torch.tensor([1, 0, 0]), **settings)

    torch.testing.assert_close(after[0], before[0])


@pytest.mark.feature("Verlog", "whitening")
def test_whitened_advantages_have_mean_0_and_variance_1_over_response_tokens():
    advantages = torch.randn(16, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = torch.arange(9) < torch.arange(1, 17)[:, None].clamp(max=9)

    kept = whiten(advantages, mask)[mask]

    assert kept.mean().abs() < 1e-9
    assert (kept.var() - 1).abs() < 1e-6


def test_rows_that_do_not_split_into_environments_are_refused():
    with pytest.raises(ValueError, match="multiple of the number of environments"):
        dual_discount_gae(
            torch.zeros(5, 2),
            torch.zeros(5, 2),
            torch.ones(5, 2),
            torch.zeros(5),
            num_environments=2,
            token_gamma=1,
            token_lambda=1,
            step_gamma=1,
            step_lambda=1,
        )
