"""Division of a step's rows among workers, so that all have about the same work."""

from collections.abc import Sequence

import numpy as np
from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions

MANY_ROWS = 256
"""Rows of each worker from which on they are dealt by length."""


def balanced_parts(work: Sequence[int], num_workers: int) -> Sequence[Sequence[int]]:
    """Return the numbers of the rows of each worker, in order and equally many, by the work that each row is.

    Many rows are dealt from the largest to the smallest, back and forth, so that the work of two workers differs by no
    more than that of the largest row. With few, verl's method of differences (Karmarkar and Karp) is closer; it takes
    seconds for 100,000 rows.
    """
    if len(work) < MANY_ROWS * num_workers:
        parts: Sequence[Sequence[int]] = get_seqlen_balanced_partitions(
            list(work), k_partitions=num_workers, equal_size=True
        )
        return parts
    rounds = np.argsort(-np.asarray(work), kind="stable").reshape(-1, num_workers)
    rounds[1::2] = rounds[1::2, ::-1]
    dealt: list[list[int]] = np.sort(rounds.T, axis=1).tolist()
    return dealt
