"""Garbage collection in processes that make many objects, of which few are in cycles."""

import gc

THRESHOLDS = (40_000, 50, 100)
"""New objects after which Python looks for cycles among them, and how many times until it looks at older ones, too.

Nothing else goes on meanwhile, and with thousands of trajectories in flight most new objects are still there.
"""


def collect_rarely() -> None:
    """Look for cycles after 40,000 new objects instead of 700, and never among those of this process's start.

    A turn's objects end by their reference counts; looking through them again and again takes a quarter of its time.
    """
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
