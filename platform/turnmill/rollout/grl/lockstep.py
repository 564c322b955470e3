"""Turns that wait for each other."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Lockstep:
    """All that take part wait at every turn until the last of them is there; who has left is waited for no more."""

    def __init__(self, members: int) -> None:
        self._members = members
        self._waiting = 0
        self._gate = asyncio.Event()

    @contextmanager
    def taking_part(self) -> Iterator[None]:
        """One of the members, until it has come to its end."""
        try:
            yield
        finally:
            self.leave(1)

    def leave(self, members: int) -> None:
        """Wait for so many no more."""
        self._members -= members
        self._open_if_all_wait()

    async def wait(self) -> None:
        """Return when all members wait."""
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
