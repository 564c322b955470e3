"""Confidence intervals of shares of episodes, and the comparison of two shares over the same episodes."""

import math
from statistics import NormalDist

Interval = tuple[float, float]
"""Lower and upper limit."""


def wilson_interval(successes: float, episodes: int, confidence: float = 0.95) -> Interval:
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
