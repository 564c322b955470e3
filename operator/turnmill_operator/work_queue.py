"""Work queue of jobs to reconcile: each job once, by one worker at a time, with exponential backoff after failures."""

import asyncio
import random
import time
from collections import OrderedDict

from turnmill_operator.views import ObjectKey

BASE_SECONDS, MAX_SECONDS = 0.5, 60.0


class WorkQueue:
    """Queue of keys. A key that is added while it is being processed is queued again afterwards."""

    def __init__(self) -> None:
        self._ready: OrderedDict[ObjectKey, float] = OrderedDict()
        self._processing: set[ObjectKey] = set()
        self._dirty: set[ObjectKey] = set()
        self._timers: dict[ObjectKey, asyncio.TimerHandle] = {}
        self._failures: dict[ObjectKey, int] = {}
        self._wake = asyncio.Event()

    def add(self, key: ObjectKey) -> None:
        """Queue a key for the next free worker."""
        if key in self._processing:
            self._dirty.add(key)
        elif key not in self._ready:
            self._ready[key] = time.monotonic()
            self._wake.set()

    def add_after(self, key: ObjectKey, seconds: float) -> None:
        """Queue a key after a delay; of several delays the earliest counts."""
        loop = asyncio.get_running_loop()
        due = loop.time() + max(0.0, seconds)
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= due:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(due, self._due, key)

    def retry(self, key: ObjectKey, *, at_least: float = 0.0) -> None:
        """Queue a key after a delay that doubles with every failure in a row, with 25 % jitter.

        Of jobs that an overloaded API server has sent away, none returns before `at_least` seconds.
        """
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        seconds = min(MAX_SECONDS, BASE_SECONDS * 2 ** min(failures - 1, 16))
        self.add_after(key, at_least + seconds * random.uniform(0.75, 1.25))

    def reset_failures(self, key: ObjectKey) -> None:
        """Forget the failures of a key."""
        self._failures.pop(key, None)

    def forget(self, key: ObjectKey) -> None:
        """Forget the failures and the timer of a deleted job."""
        self._failures.pop(key, None)
        if timer := self._timers.pop(key, None):
            timer.cancel()

    def clear(self) -> None:
        """Remove all keys and timers."""
        self._ready.clear()
        self._dirty.clear()
        self._failures.clear()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    async def get(self) -> ObjectKey:
        """Wait for a key and return the one that has waited longest; the worker must call `done` afterwards."""
        while not self._ready:
            self._wake.clear()
            await self._wake.wait()
        key, _ = self._ready.popitem(last=False)
        self._processing.add(key)
        return key

    def done(self, key: ObjectKey) -> None:
        """Mark a key as processed."""
        self._processing.discard(key)
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)

    def __len__(self) -> int:
        return len(self._ready)

    def oldest_age_seconds(self) -> float:
        """Return the seconds that the oldest key has waited for a worker."""
        return time.monotonic() - next(iter(self._ready.values())) if self._ready else 0.0

    def _due(self, key: ObjectKey) -> None:
        self._timers.pop(key, None)
        self.add(key)
