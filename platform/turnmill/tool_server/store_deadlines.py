"""Deadlines of a call's operations on the trajectory store."""

import asyncio
import math
from dataclasses import dataclass

STORE_MARGIN_SECONDS = 0.05
"""Time by which operations on the store time out before their call, so that the error names the store."""


@dataclass(frozen=True, slots=True)
class StoreDeadlines:
    """Deadlines of operations on the store: after a fixed time, and before the call's own deadline."""

    seconds: float
    call_deadline: float | None

    def next(self) -> float:
        """Return the deadline of an operation that starts at this moment, in the event loop's time."""
        latest = math.inf if self.call_deadline is None else self.call_deadline - STORE_MARGIN_SECONDS
        return min(asyncio.get_running_loop().time() + self.seconds, latest)
