"""pass@k: how likely at least one of k attempts at a task succeeds, estimated from several attempts at each task."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import StatisticsError, correlation, fmean, variance

from turnmill.observability.proportions import Interval, hypotenuse, wilson_interval


@dataclass(frozen=True, slots=True)
class Attempts:
    """Attempts at one task that did not fail because of infrastructure, and those of them that succeeded."""

    total: int
    successes: int

    def pass_at(self, k: int) -> float:
        """Return the unbiased estimate of pass@k, from at least k attempts.

        M. Chen et al., "Evaluating large language models trained on code", arXiv:2107.03374 (2021), equation 1: the
        share of the subsets of k attempts that have a success.
        """
        if not 1 <= k <= self.total:
            raise ValueError(
                f"pass@{k} needs at least {max(k, 1)} attempts, not {self.total}: lower k, or try more often."
            )
        return 1 - math.comb(self.total - self.successes, k) / math.comb(self.total, k)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over tasks, with its 95 % interval."""

    value: float
    interval: Interval
    tasks: int


def pass_at(k: int, tasks: Sequence[Attempts]) -> Estimate | None:
    """Return pass@k over tasks; tasks with fewer attempts than k are left out. None if none is left.

    The interval is Wilson's for an effective number of tasks: E. L. Korn and B. I. Graubard, "Confidence intervals for
    proportions with small expected number of positive counts estimated from survey data", Survey Methodology 24 (1998),
    193-201. Attempts at one task are alike, so they do not count as independent; that estimates of tasks with several
    attempts vary less than single attempts does count.
    """
    tasks = [task for task in tasks if task.total >= k]
    if not tasks:
        return None
    values = [task.pass_at(k) for task in tasks]
    mean = min(1.0, fmean(values))
    size = _effective_tasks(values, mean, most=sum(task.total for task in tasks) / k)
    return Estimate(mean, wilson_interval(mean * size, size), len(values))


def difference(k: int, a: Sequence[Attempts], b: Sequence[Attempts]) -> Estimate | None:
    """Return pass@k of B less that of A over tasks that both attempted k times; None if there are none.

    The tasks of both must be in the same order. The interval is Newcombe's for pairs, as of single attempts
    (`proportions.Pairs`), with the intervals of pass@k in place of those of shares.
    """
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if min(x.total, y.total) >= k]
    of_a, of_b = pass_at(k, [x for x, _ in pairs]), pass_at(k, [y for _, y in pairs])
    if of_a is None or of_b is None:
        return None
    related = _correlation([x.pass_at(k) for x, _ in pairs], [y.pass_at(k) for _, y in pairs])
    (low_a, high_a), (low_b, high_b) = of_a.interval, of_b.interval
    below = hypotenuse(of_b.value - low_b, high_a - of_a.value, related)
    above = hypotenuse(high_b - of_b.value, of_a.value - low_a, related)
    found = of_b.value - of_a.value
    return Estimate(found, (found - below, found + above), len(pairs))


def _correlation(a: Sequence[float], b: Sequence[float]) -> float:
    try:
        return correlation(a, b)
    except StatisticsError:
        # Of one pair, or of tasks that are all alike, nothing is known.
        return 0.0


def _effective_tasks(values: Sequence[float], mean: float, *, most: float) -> float:
    """Return how many independent attempts would give a mean as certain as that of the tasks' estimates.

    At least as many as there are tasks, as nothing between 0 and 1 varies more than a success or a failure.
    """
    if len(values) < 2 or not 0 < mean < 1:
        return len(values)
    spread = variance(values, mean)
    size = len(values) * mean * (1 - mean) / spread if spread > 0 else most
    return min(max(size, len(values)), max(most, len(values)))
