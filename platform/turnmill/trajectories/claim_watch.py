"""Expiry of other servers' claims, judged by this server's own clock."""

import asyncio
from collections import OrderedDict

MAX_WATCHED = 10_000
"""Number of claims that are remembered; the oldest are forgotten, and watched anew if they are met again."""


class ClaimWatch:
    """Since when claims have not been renewed.

    A claim's stamp changes with each renewal. If it has been the same for a whole lease, its server is dead. Clocks of
    machines do not count: they jump. The event loop's clock does not.
    """

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._seen: OrderedDict[str, float] = OrderedDict()

    def left_seconds(self, stamp: str) -> float:
        """Return the rest of a claim's lease, 0 if it is over. A stamp that is met for the first time has all of it."""
        now = asyncio.get_running_loop().time()
        since = self._seen.setdefault(stamp, now)
        if len(self._seen) > MAX_WATCHED:
            self._seen.popitem(last=False)
        return max(0.0, since + self._lease_seconds - now)

    def forget(self, stamp: str) -> None:
        """Forget a claim that was taken over."""
        self._seen.pop(stamp, None)
