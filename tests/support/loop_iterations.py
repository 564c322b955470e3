"""Iterations of an event loop."""

import asyncio
from dataclasses import dataclass


@dataclass
class LoopIterations:
    """Counts the iterations of the running event loop, for as long as that runs."""

    number: int = 0

    def __post_init__(self) -> None:
        asyncio.get_running_loop().call_soon(self._count)

    def _count(self) -> None:
        self.number += 1
        asyncio.get_running_loop().call_soon(self._count)
