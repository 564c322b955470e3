"""Time that an agent loop spends on generation, on tools and in its own code."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

Part = Literal["generation", "tools"]


class Timing:
    """Seconds per part of an episode, since this object was created."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started = clock()
        self._seconds: dict[str, float] = {"generation": 0.0, "tools": 0.0}

    @contextmanager
    def measure(self, part: Part) -> Iterator[None]:
        """Add the time spent in the context to a part."""
        started = self._clock()
        try:
            yield
        finally:
            self._seconds[part] += self._clock() - started

    def elapsed_since(self, earlier: Mapping[str, float]) -> dict[str, float]:
        """Return the seconds per part after an earlier `elapsed_seconds`, without parts that took none."""
        spent = {part: round(seconds - earlier[part], 6) for part, seconds in self._seconds.items()}
        return {part: seconds for part, seconds in spent.items() if seconds > 0}

    def elapsed_seconds(self) -> dict[str, float]:
        """Return the seconds per part so far; `loop` is the time outside every measured block."""
        total = self._clock() - self._started
        return {**self._seconds, "loop": max(0.0, total - sum(self._seconds.values()))}
