import itertools
import random

import pytest

from turnmill.observability.pass_at_k import Attempts, difference, pass_at
from turnmill.observability.proportions import wilson_interval


@pytest.mark.parametrize(("total", "successes", "k"), [(5, 2, 1), (5, 2, 3), (6, 0, 2), (6, 6, 2), (4, 1, 4)])
def test_an_estimate_is_the_share_of_subsets_with_a_success(total: int, successes: int, k: int):
    outcomes = [1] * successes + [0] * (total - successes)
    subsets = list(itertools.combinations(outcomes, k))

    assert Attempts(total, successes).pass_at(k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_an_estimate_is_unbiased():
    """Unlike 1 - (1 - c/n)^k, which is too low: 0.47 here."""
    random.seed(0)
    chance, k = 0.15, 4
    estimates = [Attempts(6, sum(random.random() < chance for _ in range(6))).pass_at(k) for _ in range(20_000)]

    assert sum(estimates) / len(estimates) == pytest.approx(1 - (1 - chance) ** k, abs=0.01)


def test_single_attempts_have_the_interval_of_a_share():
    tasks = [Attempts(1, success) for success in (1, 0, 0, 1, 1)]

    found = pass_at(1, tasks)

    assert found is not None
    assert (found.value, found.tasks) == (0.6, 5)
    assert found.interval == pytest.approx(wilson_interval(3, 5), abs=0.07)
    assert found.interval[0] <= wilson_interval(3, 5)[0]


def test_all_and_no_successes_leave_room_for_doubt():
    solved, unsolved = pass_at(2, [Attempts(8, 8)] * 10), pass_at(2, [Attempts(8, 0)] * 10)

    assert solved is not None
    assert unsolved is not None
    assert (solved.value, solved.interval) == (1.0, wilson_interval(10, 10))
    assert (unsolved.value, unsolved.interval) == (0.0, wilson_interval(0, 10))


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("alike", [False, True], ids=["tasks of all difficulties", "tasks that are alike"])
def test_an_interval_has_the_true_value_as_often_as_it_says(k: int, alike: bool):
    random.seed(1)
    repeats, num_tasks, attempts = 1500, 40, 8
    chances = (lambda: 0.3) if alike else (lambda: random.betavariate(0.4, 0.8))
    random.seed(2)
    truth = sum(1 - (1 - chances()) ** k for _ in range(100_000)) / 100_000

    covered = 0
    for _ in range(repeats):
        drawn = [chances() for _ in range(num_tasks)]
        found = pass_at(k, [Attempts(attempts, sum(random.random() < p for _ in range(attempts))) for p in drawn])
        assert found is not None
        covered += found.interval[0] <= truth <= found.interval[1]

    assert covered / repeats >= 0.93


def test_attempts_at_few_tasks_do_not_count_as_many_tasks():
    found = pass_at(1, [Attempts(100, 100), Attempts(100, 0)])

    assert found is not None
    assert found.interval[0] < 0.15
    assert found.interval[1] > 0.85


def test_tasks_with_too_few_attempts_are_left_out():
    found = pass_at(2, [Attempts(2, 1), Attempts(1, 0), Attempts(0, 0)])

    assert found is not None
    assert (found.value, found.tasks) == (1.0, 1)
    assert pass_at(3, [Attempts(2, 1)]) is None
    with pytest.raises(ValueError, match="pass@3 needs at least 3 attempts, not 2"):
        Attempts(2, 1).pass_at(3)


def test_two_models_are_compared_by_the_tasks_that_both_attempted():
    a = [Attempts(2, 0), Attempts(2, 1), Attempts(0, 0), Attempts(2, 2)]
    b = [Attempts(2, 2), Attempts(2, 1), Attempts(2, 2), Attempts(0, 0)]

    found = difference(1, a, b)

    assert found is not None
    assert (found.value, found.tasks) == (0.5, 2)
    assert found.interval[0] < 0.5 < found.interval[1] <= 1
    assert difference(1, a[2:], b[2:]) is None


def test_a_difference_of_few_tasks_is_in_doubt_even_if_all_of_them_agree():
    found = difference(1, [Attempts(4, 0)] * 5, [Attempts(4, 4)] * 5)

    assert found is not None
    assert found.value == 1.0
    assert found.interval[0] < 0.5


@pytest.mark.parametrize("gain", [0.0, 0.2])
def test_an_interval_of_a_difference_has_the_true_one_as_often_as_it_says(gain: float):
    """Both models meet the same easy and hard tasks."""
    random.seed(3)
    repeats, num_tasks, attempts = 1500, 40, 4

    def play(chance: float) -> Attempts:
        return Attempts(attempts, sum(random.random() < chance for _ in range(attempts)))

    covered = 0
    for _ in range(repeats):
        chances = [random.betavariate(0.8, 0.8) * (1 - gain) for _ in range(num_tasks)]
        found = difference(1, [play(p) for p in chances], [play(p + gain) for p in chances])
        assert found is not None
        covered += found.interval[0] <= gain <= found.interval[1]

    assert covered / repeats >= 0.93
