import pytest
import torch

from turnmill.training.warm_start.targets import target_distributions


def test_the_targets_of_an_action_are_conditional_on_its_preceding_tokens():
    turn_left, turn_right, drop = (1, 2, 0), (1, 3, 0), (4, 0)

    targets = target_distributions(turn_left, {turn_left: 0.2, turn_right: 0.6, drop: 0.2}, vocabulary=5)

    expected = [[0, 0.8, 0, 0, 0.2], [0, 0, 0.25, 0.75, 0], [1, 0, 0, 0, 0]]
    torch.testing.assert_close(targets, torch.tensor(expected))


def test_the_second_digit_has_the_distribution_that_follows_the_first():
    targets = target_distributions((1, 2, 9), {(1, 2): 0.3, (1, 3): 0.1, (4, 2): 0.6}, vocabulary=10)

    assert targets[0].tolist() == pytest.approx([0, 0.4, 0, 0, 0.6, 0, 0, 0, 0, 0])
    assert targets[1].tolist() == pytest.approx([0, 0, 0.75, 0.25, 0, 0, 0, 0, 0, 0])
    # Beyond the distribution, the token itself.
    assert targets[2].tolist() == [0] * 9 + [1]


def test_a_response_without_a_distribution_is_imitated_token_by_token():
    targets = target_distributions((3, 1), {}, vocabulary=4)

    assert targets.tolist() == [[0, 0, 0, 1], [0, 1, 0, 0]]
