import math

import pytest

from turnmill.observability.proportions import interval_of_share, wilson_interval


# R. G. Newcombe, "Two-sided confidence intervals for the single proportion", Statistics in Medicine 17 (1998), table I.
@pytest.mark.parametrize(
    ("successes", "episodes", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_the_wilson_interval_has_the_published_limits(successes: int, episodes: int, low: float, high: float):
    assert wilson_interval(successes, episodes) == pytest.approx((low, high), abs=5e-5)


def test_the_wilson_interval_of_failures_mirrors_that_of_successes():
    low, high = wilson_interval(7, 40)

    assert wilson_interval(33, 40) == pytest.approx((1 - high, 1 - low))


def test_the_limits_of_no_and_of_all_successes_are_exactly_0_and_1():
    assert wilson_interval(0, 9)[0] == 0
    assert wilson_interval(9, 9)[1] == 1


def test_more_confidence_makes_the_interval_wider():
    (low, high), (lower, higher) = wilson_interval(5, 20), wilson_interval(5, 20, confidence=0.99)

    assert lower < low < high < higher


@pytest.mark.parametrize("episodes", [5, 20, 64])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_the_wilson_interval_covers_the_true_share_about_as_often_as_it_says(episodes: int, share: float):
    coverage = sum(
        math.comb(episodes, k) * share**k * (1 - share) ** (episodes - k)
        for k in range(episodes + 1)
        if wilson_interval(k, episodes)[0] <= share <= wilson_interval(k, episodes)[1]
    )

    assert 0.9 < coverage <= 1


@pytest.mark.parametrize(("successes", "episodes"), [(1, 0), (-1, 5), (6, 5)])
def test_impossible_counts_are_refused(successes: int, episodes: int):
    with pytest.raises(ValueError, match="have no interval"):
        wilson_interval(successes, episodes)


@pytest.mark.parametrize(("share", "episodes"), [(None, 64), (0.5, None), (0.5, 0), (float("nan"), 64)])
def test_a_share_of_an_unknown_number_of_episodes_has_no_interval(share: float | None, episodes: int | None):
    assert interval_of_share(share, episodes) is None
