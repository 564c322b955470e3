"""Expiry of other servers' claims, judged by this server's own clock."""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from turnmill.trajectories.one_by_one import OneByOne

MAX_WATCHED = 10_000
"""Number of claims that are remembered; the oldest are forgotten, and watched anew if they are met again."""


@dataclass(frozen=True, slots=True)
class Held:
    """Another claim is held; its stamp changes when it is renewed."""

    stamp: str
    deaths: int
    """Servers that will have died of the same call when this claim is taken over; 0 for the claim of another call."""


class ClaimWatch:
    """Since when claims have not been renewed.

    A claim's stamp changes with each renewal. If it has been the same for a whole lease, its server is dead. Clocks of
    machines do not count: they jump. The event loop's clock does not.
    """

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._seen: OrderedDict[str, float] = OrderedDict()
        self.one_by_one = OneByOne()

    def wait_seconds(self, holder: str, held: Held) -> float:
        """Return the seconds until `holder` is to ask again; 0 if it may take the claim over."""
        return self.left_seconds(held.stamp) or self.one_by_one.wait_seconds(holder, held.deaths)

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
