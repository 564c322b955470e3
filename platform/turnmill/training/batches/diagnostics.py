"""Metrics that help to find why a policy does not learn.

Axes: R rows, G response tokens.
"""

from collections.abc import Iterable

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


def by_outcome(name: str, values: Iterable[tuple[bool, float, float]]) -> dict[str, float]:
    """Return `name` of solved and of unsolved episodes; an outcome that no episode has is left out.

    Each value is an episode's outcome, a sum and the number of things summed; the result is a mean over these things.
    """
    of_outcome: tuple[list[tuple[float, float]], ...] = ([], [])
    for solved, total, count in values:
        of_outcome[solved].append((total, count))
    sums = {label: [*map(sum, zip(*found, strict=True))] for label, found in zip(_OUTCOMES, of_outcome, strict=True)}
    return {f"{name}_{label}": found[0] / found[1] for label, found in sums.items() if found and found[1]}
