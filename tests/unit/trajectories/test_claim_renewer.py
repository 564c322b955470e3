import asyncio

from turnmill.core.errors import StaleClaimError, StoreUnavailableError
from turnmill.trajectories.base import CallKey, Claim
from turnmill.trajectories.claim_renewer import ClaimRenewer

CLAIM = Claim(CallKey("trajectory-1", "call-1"), "shell", 1, {})
OTHER = Claim(CallKey("trajectory-2", "call-1"), "shell", 1, {})


class Store:
    """A store that records renewed claims and raises the given errors first."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.renewed: list[Claim] = []
        self._more = asyncio.Event()

    async def renew(self, claim: Claim) -> None:
        self.renewed.append(claim)
        self._more.set()
        if self.errors:
            raise self.errors.pop(0)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.renewed) < count:
                self._more.clear()
                await self._more.wait()


async def test_a_claim_is_renewed_until_it_is_dropped():
    store = Store()
    renewal = ClaimRenewer(store.renew, 0.03, 3600)
    renewal.add(CLAIM)
    renewal.add(OTHER)
    await store.until(4)

    renewal.drop(CLAIM)
    store.renewed.clear()
    await store.until(3)

    assert {claim.key.trajectory_id for claim in store.renewed} == {"trajectory-2"}
    await renewal.close()


async def test_a_lost_claim_is_not_renewed():
    store = Store(StaleClaimError("lost"))
    renewal = ClaimRenewer(store.renew, 0.03, 3600)
    renewal.add(CLAIM)
    await store.until(1)
    renewal.add(OTHER)

    await store.until(4)

    assert store.renewed.count(CLAIM) == 1
    await renewal.close()


async def test_renewal_is_retried_while_the_store_is_unavailable():
    store = Store(StoreUnavailableError("away"), StoreUnavailableError("away"))
    renewal = ClaimRenewer(store.renew, 0.03, 3600)
    renewal.add(CLAIM)

    await store.until(3)

    await renewal.close()


async def test_nothing_is_renewed_after_close():
    store = Store()
    renewal = ClaimRenewer(store.renew, 0.03, 3600)
    renewal.add(CLAIM)
    await store.until(1)

    await renewal.close()

    assert len(asyncio.all_tasks()) == 1
