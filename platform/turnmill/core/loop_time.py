"""Time limits that do not count the time in which the event loop stands still."""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

SLICE_SECONDS = 1.0
"""Waits are cut into slices of this length; one in which the event loop stood still counts as one slice."""

ValueT = TypeVar("ValueT")


class LoopTime:
    """Seconds that may pass while the event loop runs.

    A process that was stopped, or did something else for a minute, finds timers that ran out and answers that came, and
    looks at the timers first. Here the answers win.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        """Seconds that are left."""
        self.passed = 0.0
        """Seconds of all waits so far, by the same clock."""

    async def wait(self, coroutine: Awaitable[ValueT], seconds: float) -> ValueT:
        """Return what a coroutine returns; after `seconds`, or what is left, cancel it and raise TimeoutError."""
        task = asyncio.ensure_future(coroutine)
        limit = min(seconds, self.seconds)
        loop = asyncio.get_running_loop()
        try:
            while limit > 0:
                piece, started = min(limit, SLICE_SECONDS), loop.time()
                done, _ = await asyncio.wait({task}, timeout=piece)
                passed = min(loop.time() - started, piece)
                self.seconds -= passed
                self.passed += passed
                if done:
                    return task.result()
                limit -= piece
            raise TimeoutError
        finally:
            await give_up(task)

    async def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`, which are then less left."""
        with suppress(TimeoutError):
            await self.wait(asyncio.sleep(seconds), seconds)


async def give_up(task: asyncio.Future[ValueT]) -> None:
    """Cancel a task that has not ended, and wait for its end, whatever that is."""
    if not task.done():
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task
