"""Confidence intervals of shares of episodes, and the comparison of two shares over the same episodes."""

import math
from dataclasses import dataclass
from statistics import NormalDist

Interval = tuple[float, float]
"""Lower and upper limit."""


def wilson_interval(successes: float, episodes: float, confidence: float = 0.95) -> Interval:
    """Return the score interval of a share of successes.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", Journal of the American
    Statistical Association 22 (1927), 209-212. It stays within 0 and 1, and is sound for few episodes and for shares
    near 0 and 1, where the share plus or minus its standard error is not.
    """
    if episodes < 1 or not 0 <= successes <= episodes:
        raise ValueError(
            f"{successes:g} successes in {episodes} episodes have no interval: "
            "give at least one episode, and from none to all of them as successes."
        )
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = successes / episodes
    scale = 1 + z * z / episodes
    centre = (share + z * z / (2 * episodes)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / episodes + z * z / (4 * episodes * episodes))
    # Rounding would leave the limits of no and of all successes a little inside of 0 and 1.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == episodes else min(1.0, centre + half)
    return low, high


def interval_of_share(share: float | None, episodes: float | None) -> Interval | None:
    """Return the 95 % interval of a share; None if the share or the number of episodes is not known."""
    if share is None or not episodes or not 0 <= share <= 1:
        return None
    return wilson_interval(share * episodes, int(episodes))


@dataclass(frozen=True, slots=True)
class Pairs:
    """Outcomes of two runs in the same episodes: the number of episodes that both, one or neither of them solved."""

    both: int
    only_a: int
    only_b: int
    neither: int

    @property
    def total(self) -> int:
        """Number of pairs."""
        return self.both + self.only_a + self.only_b + self.neither

    @property
    def successes(self) -> tuple[int, int]:
        """Episodes that A solved, and those that B solved."""
        return self.both + self.only_a, self.both + self.only_b

    @property
    def difference(self) -> float:
        """Success of B less that of A."""
        return (self.only_b - self.only_a) / self.total

    def interval(self, confidence: float = 0.95) -> Interval:
        """Return the interval of the difference.

        Method 10 of R. G. Newcombe, "Improved confidence intervals for the difference between binomial proportions
        based on paired data", Statistics in Medicine 17 (1998), 2635-2650: the Wilson intervals of both shares,
        combined with the correlation of the pairs.
        """
        of_a, of_b = self.successes
        (low_a, high_a), (low_b, high_b) = (wilson_interval(n, self.total, confidence) for n in (of_a, of_b))
        share_a, share_b = of_a / self.total, of_b / self.total
        correlation = self._correlation()
        below = hypotenuse(share_b - low_b, high_a - share_a, correlation)
        above = hypotenuse(high_b - share_b, share_a - low_a, correlation)
        return self.difference - below, self.difference + above

    def p_value(self) -> float:
        """Return the two-sided p-value of McNemar's exact test: how likely a difference as large is by chance.

        Q. McNemar, "Note on the sampling error of the difference between correlated proportions or percentages",
        Psychometrika 12 (1947), 153-157. If the runs are equally good, each of the pairs that only one of them solved
        is as likely to be A's as B's.
        """
        discordant = self.only_a + self.only_b
        tail = sum(math.comb(discordant, count) for count in range(min(self.only_a, self.only_b) + 1))
        return min(1.0, 2 * tail / (1 << discordant))

    def _correlation(self) -> float:
        """Return Newcombe's correlation of the pairs, with his continuity correction if it is positive."""
        of_a, of_b = self.successes
        margins = of_a * (self.total - of_a) * of_b * (self.total - of_b)
        if margins == 0:
            return 0.0
        product = self.both * self.neither - self.only_a * self.only_b
        corrected = max(product - self.total / 2, 0.0) if product > 0 else product
        return corrected / math.sqrt(margins)


def hypotenuse(first: float, second: float, correlation: float) -> float:
    """Return the distance of a limit of a difference, from the distances of the limits of two correlated shares."""
    return math.sqrt(max(0.0, first * first - 2 * correlation * first * second + second * second))
