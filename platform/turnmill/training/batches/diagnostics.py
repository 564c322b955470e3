"""Metrics that help to find why a policy does not learn.

Axes: R rows, G response tokens, K episodes.
"""

import numpy as np
import numpy.typing as npt
from torch import Tensor

_OUTCOMES = ("unsolved", "solved")


def advantage_spread(advantages_RG: Tensor, weights_RG: Tensor) -> dict[str, float]:
    """Return the standard deviation of the trained tokens' advantages; an empty mapping with fewer than two.

    `weights_RG` is the number of trained tokens at each position.
    """
    trained = weights_RG > 0
    kept, weights = advantages_RG[trained].double(), weights_RG[trained].double()
    count = weights.sum()
    if count < 2:
        return {}
    mean = (kept * weights).sum() / count
    return {"critic/advantages/std": ((kept - mean).square() * weights).sum().div(count - 1).sqrt().item()}


def by_outcome(
    name: str, solved_K: npt.ArrayLike, sums_K: npt.ArrayLike, counts_K: npt.ArrayLike | None = None
) -> dict[str, float]:
    """Return `name` of solved and of unsolved episodes; an outcome that no episode has is left out.

    Each episode has a sum, and the number of things summed, of which it is a mean; by default 1.
    """
    is_solved_K, sums_K = np.asarray(solved_K, bool), np.asarray(sums_K, float)
    counts_K = np.ones_like(sums_K) if counts_K is None else np.asarray(counts_K, float)
    metrics = {}
    for outcome, label in enumerate(_OUTCOMES):
        chosen_K = is_solved_K == bool(outcome)
        if count := counts_K[chosen_K].sum():
            metrics[f"{name}_{label}"] = float(sums_K[chosen_K].sum() / count)
    return metrics
