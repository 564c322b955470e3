"""Jobs that wait to be looked at: each once, one worker at a time, failed ones later and later."""

import asyncio
import random
import time
from collections import OrderedDict

from turnmill_operator.views import Key

BASE_SECONDS, MAX_SECONDS = 0.5, 60.0


class WorkQueue:
    """Keys to work on. A key that comes while it is worked on is kept for afterwards."""

    def __init__(self) -> None:
        self._ready: OrderedDict[Key, float] = OrderedDict()
        self._busy: set[Key] = set()
        self._again: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._wake = asyncio.Event()

    def add(self, key: Key) -> None:
        """Look at it as soon as a worker is free."""
        if key in self._busy:
            self._again.add(key)
        elif key not in self._ready:
            self._ready[key] = time.monotonic()
            self._wake.set()

    def add_after(self, key: Key, seconds: float) -> None:
        """Look at it later; of several times the earliest counts."""
        loop = asyncio.get_running_loop()
        due = loop.time() + max(0.0, seconds)
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= due:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(due, self._due, key)

    def add_failed(self, key: Key) -> None:
        """Look at it again after a while that doubles with every failure in a row, give or take a quarter."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        seconds = min(MAX_SECONDS, BASE_SECONDS * 2 ** min(failures - 1, 16))
        self.add_after(key, seconds * random.uniform(0.75, 1.25))

    def succeeded(self, key: Key) -> None:
        """The last look did not fail."""
        self._failures.pop(key, None)

    def forget(self, key: Key) -> None:
        """The job is gone."""
        self._failures.pop(key, None)
        if timer := self._timers.pop(key, None):
            timer.cancel()

    def clear(self) -> None:
        """Forget everything that waits."""
        self._ready.clear()
        self._again.clear()
        self._failures.clear()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    async def get(self) -> Key:
        """The key that has waited longest; the worker says `done` in the end."""
        while not self._ready:
            self._wake.clear()
            await self._wake.wait()
        key, _ = self._ready.popitem(last=False)
        self._busy.add(key)
        return key

    def done(self, key: Key) -> None:
        """The worker has finished with the key."""
        self._busy.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def __len__(self) -> int:
        return len(self._ready)

    def age(self) -> float:
        """Time that the oldest key has waited for a worker."""
        return time.monotonic() - next(iter(self._ready.values())) if self._ready else 0.0

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.add(key)
