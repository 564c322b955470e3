"""What an agent loop spends its time on."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

Part = Literal["generation", "tools"]


class Timing:
    """Seconds by what was waited for, from the moment this is made."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._seconds: dict[str, float] = {"generation": 0.0, "tools": 0.0}

    @contextmanager
    def on(self, part: Part) -> Iterator[None]:
        """Wait for the policy, or for a tool or environment."""
        began = self._clock()
        try:
            yield
        finally:
            self._seconds[part] += self._clock() - began

    def since(self, before: Mapping[str, float]) -> dict[str, float]:
        """Seconds by what was waited for, after an earlier `read`; parts that took none are left out."""
        spent = {part: round(seconds - before[part], 6) for part, seconds in self._seconds.items()}
        return {part: seconds for part, seconds in spent.items() if seconds > 0}

    def read(self) -> dict[str, float]:
        """Seconds so far; `loop` is what passed while nothing was waited for."""
        whole = self._clock() - self._began
        return {**self._seconds, "loop": max(0.0, whole - sum(self._seconds.values()))}
