import numpy as np
import pytest

from turnmill.core.trajectory import EpisodeSummary
from turnmill.training.batches.sample_metrics import sample_metrics


def samples(task: int, *rewards: float, predictions: str | None = None) -> list[EpisodeSummary]:
    """Return the samples of a task; each letter of `predictions` is a vote."""
    votes = predictions or [None] * len(rewards)
    return [
        EpisodeSummary(
            episode_id=f"v0-{task}-{number}",
            reward=reward,
            success=reward > 0,
            prediction=vote,
            stop_reason="completed",
            num_turns=1,
        )
        for number, (reward, vote) in enumerate(zip(rewards, votes, strict=True))
    ]


@pytest.mark.feature("verl-tool", "several samples per validation task")
def test_samples_have_the_metrics_of_verl_over_the_tasks():
    found = sample_metrics([*samples(0, 0.0, 1.0), *samples(1, 0.5, 0.5)], 2)

    assert found["validation/reward/mean@2"] == 0.5
    assert found["validation/reward/std@2"] == 0.25
    # Two draws with replacement from two samples: the better one is in three of four pairs.
    assert found["validation/reward/best@2/mean"] == pytest.approx((0.75 + 0.5) / 2, abs=0.02)
    assert found["validation/reward/worst@2/mean"] == pytest.approx((0.25 + 0.5) / 2, abs=0.02)
    assert found["validation/success/mean@2"] == 0.75
    assert found["validation/episodes"] == 2
    assert not any("maj@" in name for name in found)


@pytest.mark.feature("verl-tool", "several samples per validation task")
def test_the_reward_of_the_vote_of_the_majority_is_counted():
    right = sample_metrics(samples(0, 1.0, 1.0, 1.0, 0.0, predictions="aaab"), 4)
    wrong = sample_metrics(samples(0, 1.0, 0.0, 0.0, 0.0, predictions="abbb"), 4)

    assert right["validation/reward/maj@4/mean"] > right["validation/reward/mean@4"] == 0.75
    assert wrong["validation/reward/maj@4/mean"] < wrong["validation/reward/mean@4"] == 0.25
    assert {"validation/reward/maj@2/mean", "validation/reward/best@2/mean"} <= set(right)


def test_tasks_with_a_failed_sample_are_left_out():
    found = sample_metrics([*samples(0, 1.0, 1.0), *samples(1, 0.0)], 2)

    assert found["validation/reward/mean@2"] == 1.0
    assert sample_metrics(samples(1, 0.0), 2) == {"validation/episodes": 1.0}


def test_samples_of_tasks_are_told_apart_by_their_whole_number():
    found = sample_metrics([*samples(1, 1.0, 1.0), *samples(11, 0.0, 0.0)], 2)

    assert found["validation/reward/std@2"] == 0.0


def test_a_single_sample_has_the_metrics_of_the_validation_alone():
    assert sample_metrics(samples(0, 1.0), 1) == {}


def test_the_order_of_the_rows_and_the_state_of_numpy_do_not_matter():
    given = [*samples(0, 0.0, 1.0, 0.0), *samples(1, 1.0, 1.0, 0.0)]
    np.random.seed(7)
    expected, drawn = sample_metrics(given, 3), np.random.random()
    np.random.seed(7)

    assert np.random.random() == drawn
    assert sample_metrics(given[::-1], 3) == expected
