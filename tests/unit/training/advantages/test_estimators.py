"""Advantages of every algorithm, compared with values computed by hand."""

import math

import pytest
import torch

from turnmill.jobs.trajectory_algorithms import (
    Dapo,
    GigPo,
    Grpo,
    Overlong,
    Ppo,
    ReinforcePlusPlus,
    ReinforcePlusPlusBaseline,
    Rloo,
)
from turnmill.training.advantages.estimators import move_to_trained_tokens, state_advantages
from turnmill.training.advantages.index import TrajectoryIndex
from turnmill.training.advantages.rows import Rows, mean_over_trajectories
from turnmill.training.algorithms import trajectory_algorithm_of

GROUPS = ["a", "a", "a", "b", "b", "c"]
# The last trajectory is alone in its group because the others failed.
REWARDS = torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 0.5], [0.0, 2.0], [0.0, 0.0], [0.0, 7.0]])
ONES = torch.ones(6, 2)


def trajectory_advantages(algorithm, rewards=REWARDS, mask=ONES, groups=GROUPS) -> list[float]:
    advantages, _ = trajectory_algorithm_of(algorithm).estimate(rewards, mask, groups)
    torch.testing.assert_close(advantages, advantages[:, :1] * mask)
    return advantages[:, 0].tolist()


def test_a_grpo_advantage_is_the_difference_from_the_group_mean_in_standard_deviations():
    # Group a: mean 0.5, deviation 0.5; group b: mean 1, deviation sqrt(2).
    expected = [1.0, -1.0, 0.0, 1 / math.sqrt(2), -1 / math.sqrt(2), 0.0]

    assert trajectory_advantages(Grpo()) == pytest.approx(expected, abs=1e-5)
    assert trajectory_advantages(Dapo()) == pytest.approx(expected, abs=1e-5)


def test_grpo_can_skip_normalisation_and_use_the_mean_of_the_step():
    assert trajectory_advantages(Grpo(normalise=False)) == pytest.approx([0.5, -0.5, 0.0, 1.0, -1.0, 0.0])
    mean = 10.5 / 6
    assert trajectory_advantages(Grpo(normalise=False, baseline="step")) == pytest.approx(
        [1 - mean, -mean, 0.5 - mean, 2 - mean, -mean, 7 - mean]
    )


def test_the_rloo_baseline_is_the_mean_of_the_other_trajectories():
    assert trajectory_advantages(Rloo()) == pytest.approx([1 - 0.25, 0 - 0.75, 0.5 - 0.5, 2.0, -2.0, 0.0])


def test_reinforce_plus_plus_whitens_discounted_rewards_over_the_step():
    rewards, mask = torch.tensor([[0.0, 0.0, 4.0], [0.0, 0.0, 0.0]]), torch.tensor([[1, 1, 1], [1, 1, 0]])

    advantages, returns = trajectory_algorithm_of(ReinforcePlusPlus(gamma=0.5)).estimate(rewards, mask, ["a", "b"])

    # Returns 1, 2, 4, 0, 0: mean 1.4, unbiased variance (0.16 + 0.36 + 6.76 + 1.96 + 1.96) / 4 = 2.8.
    assert returns.tolist() == [[1.0, 2.0, 4.0], [0.0, 0.0, 0.0]]
    expected = [[(x - 1.4) / math.sqrt(2.8) for x in row] for row in ([1, 2, 4], [0, 0, 1.4])]
    torch.testing.assert_close(advantages, torch.tensor(expected), atol=1e-5, rtol=0)


def test_reinforce_plus_plus_with_a_baseline_subtracts_the_group_mean_first():
    # Differences 0.5, -0.5, 0, 1, -1 at two tokens each: variance 2 * 2.5 / 9, without the lone trajectory.
    deviation = math.sqrt(5 / 9)

    assert trajectory_advantages(ReinforcePlusPlusBaseline()) == pytest.approx(
        [x / deviation for x in (0.5, -0.5, 0, 1, -1, 0)], abs=1e-5
    )


def test_ppo_runs_gae_over_the_tokens_that_the_policy_generated():
    # The second token is an observation: its value is ignored and the estimate skips it.
    rewards = torch.tensor([[0.0, 0.0, 1.0]])
    values, mask = torch.tensor([[0.5, 9.0, 0.2]]), torch.tensor([[1, 0, 1]])

    advantages, returns = trajectory_algorithm_of(Ppo(gamma=0.9, gae_lambda=0.5)).estimate(rewards, mask, ["a"], values)

    last = 1.0 - 0.2
    first = 0.9 * 0.2 - 0.5 + 0.9 * 0.5 * last
    assert returns[0, [0, 2]].tolist() == pytest.approx([first + 0.5, last + 0.2])
    # Two whitened values lie sqrt(1/2) on either side of zero.
    assert advantages[0].tolist() == pytest.approx([-1 / math.sqrt(2), 0.0, 1 / math.sqrt(2)], abs=1e-5)


@pytest.mark.parametrize("algorithm", [Ppo(), ReinforcePlusPlus(), ReinforcePlusPlusBaseline(), Rloo(), Grpo()])
def test_a_step_with_an_empty_response_mask_has_zero_advantages(algorithm):
    advantages, _ = trajectory_algorithm_of(algorithm).estimate(REWARDS, torch.zeros(6, 2), GROUPS, torch.zeros(6, 2))

    assert advantages.abs().sum() == 0


def test_rewards_of_observations_move_to_trained_tokens():
    mask = torch.tensor([[1, 1, 0], [0, 0, 1], [0, 0, 0]])
    rewards = torch.tensor([[0.5, 0.0, 2.0], [3.0, 0.0, 1.0], [0.0, 4.0, 0.0]])

    assert move_to_trained_tokens(rewards, mask).tolist() == [[0.5, 2.0, 0.0], [0.0, 0.0, 4.0], [4.0, 0.0, 0.0]]


# ---- rows ----


def rows_of(keys, scores, *, lengths=None, mask=None, **more) -> Rows:
    scores = torch.tensor(scores)
    lengths = torch.tensor(lengths or [scores.shape[1]] * len(keys))
    live = (torch.arange(scores.shape[1]) < lengths[:, None]).float()
    return Rows(keys, lengths, live if mask is None else torch.tensor(mask), scores, scores, **more)


def test_the_rows_of_a_trajectory_are_joined_into_one_sequence():
    joined = TrajectoryIndex.of(["u_0_1", "u_1_0", "u_0_0"], torch.tensor([1, 3, 2]))
    values = torch.tensor([[3.0, 0, 0], [7.0, 8, 9], [1.0, 2, 0]])

    together = joined.join(values)

    assert together.tolist() == [[1, 2, 3], [7, 8, 9]]
    assert joined.split(together, 3).tolist() == values.tolist()
    assert (joined.last_rows, joined.trajectory_of_row.tolist()) == ([0, 1], [0, 1, 0])


def test_gae_continues_across_the_rows_of_a_trajectory():
    values = torch.tensor([[0.1, 0.2], [0.3, 0.0], [0.1, 0.2]])
    cut = rows_of(["u_0_0", "u_0_1", "u_1_0"], [[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]], lengths=[2, 1, 2])
    rows = Rows(cut.keys, cut.lengths_R, cut.mask_RG, cut.scores_RG, cut.rewards_RG, values_RG=values)

    _, returns = trajectory_algorithm_of(Ppo()).advantages(rows)

    assert returns.tolist() == [[1.0, 1.0], [1.0, 0.0], [pytest.approx(0), pytest.approx(0)]]


def test_a_reward_repeated_in_every_row_counts_once():
    repeated = rows_of(["u_0_0", "u_0_1", "u_1_0"], [[1.0], [1.0], [0.0]])

    advantages, _ = trajectory_algorithm_of(Grpo(normalise=False)).advantages(repeated)

    assert advantages.tolist() == [[0.5], [0.5], [-0.5]]


def test_turn_rewards_sum_to_the_reward_of_the_trajectory():
    own = rows_of(["u_0_0", "u_0_1", "u_1_0"], [[1.0], [2.0], [0.0]], own_scores=True)

    advantages, _ = trajectory_algorithm_of(Grpo(normalise=False)).advantages(own)

    assert advantages.tolist() == [[1.5], [1.5], [-1.5]]


# ---- GiGPO ----


def test_turns_are_compared_with_turns_that_began_in_the_same_state():
    # Two episodes: the first visits s, t and is rewarded; the second visits s, s, u and is not.
    rewards = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0])
    states = ["s", "t", "s", "s", "u"]

    found = state_advantages(rewards, [[0, 1], [2, 3, 4]], states, gamma=0.5, normalise=False)

    # In s the returns are 0.5, 0 and 0; t and u occur once and have no comparison.
    assert found.tolist() == pytest.approx([1 / 3, 0.0, -1 / 6, -1 / 6, 0.0])


def test_gigpo_adds_weighted_turn_advantages_to_episode_advantages():
    rows = rows_of(
        ["g_0_0", "g_0_1", "g_1_0", "g_1_1"], [[0.0], [1.0], [0.0], [0.0]],
        own_scores=True, states_R=["s", "t", "s", "u"],
    )  # fmt: skip

    advantages, _ = trajectory_algorithm_of(GigPo(gamma=0.5, step_weight=2.0, normalise=False)).advantages(rows)

    assert rows.same_state_ratio == 0.5
    # Episodes: +-0.5. Turns in s: returns 0.5 and 0, so +-0.25, twice.
    assert advantages[:, 0].tolist() == pytest.approx([0.5 + 0.5, 0.5, -0.5 - 0.5, -0.5])


def test_a_normalised_gigpo_advantage_is_the_sum_of_two_grpo_advantages():
    rows = rows_of(
        ["g_0_0", "g_0_1", "g_1_0", "g_1_1"], [[0.0], [1.0], [0.0], [0.0]],
        own_scores=True, states_R=["s", "t", "s", "u"],
    )  # fmt: skip

    advantages, _ = trajectory_algorithm_of(GigPo()).advantages(rows)

    half = 1 / math.sqrt(2)
    assert advantages[:, 0].tolist() == pytest.approx([2 * half, half, -2 * half, -half], abs=1e-4)


def test_turns_of_different_groups_are_not_compared_even_in_the_same_state():
    rows = rows_of(["g_0_0", "g_1_0", "h_0_0", "h_1_0"], [[1.0], [0.0], [5.0], [5.0]], own_scores=True,
                   states_R=["s"] * 4)  # fmt: skip

    advantages, _ = trajectory_algorithm_of(GigPo(normalise=False)).advantages(rows)

    assert advantages[:, 0].tolist() == pytest.approx([1.0, -1.0, 0.0, 0.0])


# ---- DAPO ----


def test_the_overlong_penalty_grows_over_the_last_tokens_before_the_limit():
    dapo = Dapo(overlong=Overlong(tokens=4, penalty=0.5))

    found = trajectory_algorithm_of(dapo).penalties(torch.tensor([3, 16, 17, 18, 20]), limit=20)

    assert found.tolist() == pytest.approx([0.0, 0.0, -0.125, -0.25, -0.5])
    assert trajectory_algorithm_of(Dapo()).penalties(torch.tensor([20]), limit=20).tolist() == [0.0]


def test_the_advantage_of_a_trajectory_is_the_mean_over_its_trained_tokens():
    rows = rows_of(["u_0_0", "u_0_1", "u_1_0"], [[0.0, 0.0]] * 3, lengths=[2, 1, 2], mask=[[1, 1], [1, 0], [0, 0]])
    advantages = torch.tensor([[1.0, 2.0], [6.0, 9.0], [5.0, 5.0]])

    assert mean_over_trajectories(advantages, rows, rows.mask_RG).tolist() == [3.0, 3.0, 0.0]
