"""Keeps the claims of a server alive while it works on them."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from turnmill.core.errors import StaleClaimError, StoreError
from turnmill.trajectories.base import Claim

PER_LEASE = 3
"""A claim is renewed so often within one lease, so that two lost attempts do no harm."""


@dataclass(slots=True)
class _Held:
    claim: Claim
    since: float
    renewed: float


class Renewal:
    """Renews what is held; calls that are shorter than a third of the lease never come to it."""

    def __init__(self, renew: Callable[[Claim], Awaitable[None]], lease_seconds: float, max_seconds: float) -> None:
        self._renew = renew
        self._period = lease_seconds / PER_LEASE
        self._max_seconds = max_seconds
        self._held: dict[tuple[str, str, int], _Held] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, claim: Claim) -> None:
        """Renew a claim from here on."""
        loop = asyncio.get_running_loop()
        self._held[_name(claim)] = _Held(claim, loop.time(), loop.time())
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())

    def drop(self, claim: Claim) -> None:
        """Leave a claim alone."""
        self._held.pop(_name(claim), None)

    async def close(self) -> None:
        """Renew nothing any more."""
        self._held.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while self._held:
            await asyncio.sleep(self._period / 2)
            now = asyncio.get_running_loop().time()
            due = [held for held in self._held.values() if held.renewed + self._period <= now]
            async with asyncio.TaskGroup() as group:
                for held in due:
                    if held.since + self._max_seconds <= now:
                        self.drop(held.claim)
                    else:
                        group.create_task(self._renew_one(held))

    async def _renew_one(self, held: _Held) -> None:
        now = asyncio.get_running_loop().time()
        try:
            await self._renew(held.claim)
            held.renewed = now
        except StaleClaimError:
            # Its call learns it when it commits.
            self.drop(held.claim)
        except StoreError:
            # The next round tries again; a claim that runs out meanwhile is lost, and its commit tells.
            return


def _name(claim: Claim) -> tuple[str, str, int]:
    return claim.key.trajectory_id, claim.tool, claim.token
