"""A barrier at which episodes wait for each other after every turn."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Lockstep:
    """Barrier of a changing number of members: each waits at every turn until all that have not left wait."""

    def __init__(self, members: int) -> None:
        self._members = members
        self._waiting = 0
        self._gate = asyncio.Event()

    @contextmanager
    def taking_part(self) -> Iterator[None]:
        """Take part as one of the members, and leave at the end of the block."""
        try:
            yield
        finally:
            self.leave(1)

    def leave(self, members: int) -> None:
        """Remove a number of members; the others no longer wait for them."""
        self._members -= members
        self._open_if_all_wait()

    async def wait(self) -> None:
        """Wait until all members wait."""
        gate = self._gate
        self._waiting += 1
        self._open_if_all_wait()
        try:
            await gate.wait()
        except asyncio.CancelledError:
            if not gate.is_set():
                self._waiting -= 1
            raise

    def _open_if_all_wait(self) -> None:
        if self._waiting and self._waiting >= self._members:
            self._waiting = 0
            self._gate.set()
            self._gate = asyncio.Event()
