"""Admission of tasks by their number and by the memory that they may use."""

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

DEFAULT_SHARE = 0.8
"""Share of the machine's or container's memory for tasks; the rest is for the server itself."""

_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


class Admission:
    """Admits tasks in the order in which they come, while their limits of memory add up to at most a budget.

    A task that may use more than the whole budget runs alone. `on_waiting` is called with the number of waiting tasks
    whenever it changes.
    """

    def __init__(
        self, *, max_running: int, memory_bytes: int, on_waiting: Callable[[int], object] = lambda _: None
    ) -> None:
        self._places = max_running
        self._budget_bytes = self._free_bytes = memory_bytes
        self._queue: deque[tuple[asyncio.Future[None], int]] = deque()
        self._on_waiting = on_waiting

    @asynccontextmanager
    async def admitted(self, memory_bytes: int) -> AsyncIterator[None]:
        """Wait until a task may run that uses up to `memory_bytes`; it has ended when the context ends."""
        cost = min(memory_bytes, self._budget_bytes)
        if self._queue or not self._has_room(cost):
            await self._wait(cost)
        else:
            self._take(cost)
        try:
            yield
        finally:
            self._release(cost)

    async def _wait(self, cost: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((turn, cost))
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._queue.remove((turn, cost))
                self._admit()
            else:
                self._release(cost)
            raise

    def _has_room(self, cost: int) -> bool:
        return self._places > 0 and cost <= self._free_bytes

    def _take(self, cost: int) -> None:
        self._places -= 1
        self._free_bytes -= cost

    def _release(self, cost: int) -> None:
        self._places += 1
        self._free_bytes += cost
        if self._queue:
            self._admit()

    def _admit(self) -> None:
        while self._queue and self._has_room(self._queue[0][1]):
            turn, cost = self._queue.popleft()
            self._take(cost)
            turn.set_result(None)
        self._on_waiting(len(self._queue))


def default_budget() -> int:
    """Return the memory in bytes that tasks may use together if nothing else is set."""
    return int(DEFAULT_SHARE * available_bytes())


def available_bytes() -> int:
    """Return the memory that this container may use, or that of the machine if that is less."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in _CGROUP_LIMITS:
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            limits.append(int(text))
    return min(limits)
