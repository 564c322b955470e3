import math
from itertools import product

import pytest

from turnmill.observability.proportions import Pairs, interval_of_share, wilson_interval


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


# Airway hyper-responsiveness before and after a transplantation, in M. W. Fagerland, S. Lydersen and P. Laake,
# "Recommended tests and confidence intervals for paired binomial proportions", Statistics in Medicine 33 (2014).
AIRWAYS = Pairs(both=1, only_a=1, only_b=7, neither=12)


def test_the_difference_of_paired_shares_has_the_published_interval():
    assert AIRWAYS.difference == pytest.approx(6 / 21)
    assert AIRWAYS.interval() == pytest.approx((0.026, 0.507), abs=5e-4)


def test_mcnemars_exact_test_has_the_published_p_value():
    assert AIRWAYS.p_value() == pytest.approx(0.0703, abs=5e-5)


def test_swapping_the_runs_mirrors_the_interval_and_keeps_the_p_value():
    pairs, swapped = Pairs(30, 4, 12, 18), Pairs(30, 12, 4, 18)

    low, high = pairs.interval()

    assert swapped.interval() == pytest.approx((-high, -low))
    assert swapped.p_value() == pairs.p_value()


def test_runs_without_a_discordant_pair_do_not_differ():
    pairs = Pairs(both=10, only_a=0, only_b=0, neither=6)

    low, high = pairs.interval()

    assert (pairs.difference, pairs.p_value()) == (0, 1)
    assert low < 0 < high


def test_more_pairs_make_the_interval_of_the_difference_narrower():
    few, many = Pairs(10, 2, 6, 10), Pairs(100, 20, 60, 100)

    assert few.interval()[0] < 0 < many.interval()[0]
    assert many.p_value() < 0.001 < few.p_value()


@pytest.mark.parametrize("pairs", [Pairs(5, 0, 0, 0), Pairs(0, 5, 0, 0), Pairs(0, 0, 5, 0), Pairs(0, 0, 0, 5)])
def test_the_interval_of_a_difference_is_within_1(pairs: Pairs):
    low, high = pairs.interval()

    assert -1 <= low <= pairs.difference <= high <= 1


def test_the_interval_of_a_difference_covers_it_about_as_often_as_it_says():
    shares, total = (0.4, 0.1, 0.25, 0.25), 14

    coverage = 0.0
    for both, only_a, only_b in product(range(total + 1), repeat=3):
        neither = total - both - only_a - only_b
        if neither < 0:
            continue
        counts = (both, only_a, only_b, neither)
        ways = math.factorial(total) // math.prod(map(math.factorial, counts))
        low, high = Pairs(*counts).interval()
        if low <= shares[2] - shares[1] <= high:
            coverage += ways * math.prod(share**count for share, count in zip(shares, counts, strict=True))

    assert 0.93 < coverage < 0.98
