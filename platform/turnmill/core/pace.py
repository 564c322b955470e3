"""A pace for coroutines that could all go on at once."""

import asyncio
from collections import deque


class Pace:
    """Lets few coroutines go on in each iteration of the event loop, in the order in which they asked.

    Thousands that go on in one iteration keep it from its timers and connections until the last has got to its next
    wait. For one event loop; not for several threads.
    """

    def __init__(self, per_iteration: int) -> None:
        self._per_iteration = self._left = per_iteration
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self) -> None:
        """Return at once if fewer have gone on in this iteration, else in a later one."""
        if self._left:
            self._take()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    def _take(self) -> None:
        if self._left == self._per_iteration:
            asyncio.get_running_loop().call_soon(self._begin_iteration)
        self._left -= 1

    def _begin_iteration(self) -> None:
        self._left = self._per_iteration
        while self._waiting and self._left:
            turn = self._waiting.popleft()
            # One that was cancelled takes nothing from the others.
            if not turn.done():
                turn.set_result(None)
                self._take()
