"""Background renewal of claims while their calls are executed."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from turnmill.core.errors import StaleClaimError, StoreError
from turnmill.trajectories.base import Claim

PER_LEASE = 3
"""Number of renewals within one lease, so that two may fail."""


@dataclass(slots=True)
class _Held:
    claim: Claim
    since: float
    renewed: float


class ClaimRenewer:
    """Renews held claims; calls shorter than a third of the lease need no renewal."""

    def __init__(self, renew: Callable[[Claim], Awaitable[None]], lease_seconds: float, max_seconds: float) -> None:
        self._renew = renew
        self._period = lease_seconds / PER_LEASE
        self._max_seconds = max_seconds
        self._held: dict[tuple[str, str, int], _Held] = {}
        self._task: asyncio.Task[None] | None = None

    def add(self, claim: Claim) -> None:
        """Start renewing a claim."""
        loop = asyncio.get_running_loop()
        self._held[_claim_id(claim)] = _Held(claim, loop.time(), loop.time())
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run())

    def drop(self, claim: Claim) -> None:
        """Stop renewing a claim."""
        self._held.pop(_claim_id(claim), None)

    async def close(self) -> None:
        """Stop renewing all claims."""
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
            # The commit of its call will report it.
            self.drop(held.claim)
        except StoreError:
            # The next round tries again; if the claim expires meanwhile, its commit will report it.
            return


def _claim_id(claim: Claim) -> tuple[str, str, int]:
    return claim.key.trajectory_id, claim.tool, claim.token
