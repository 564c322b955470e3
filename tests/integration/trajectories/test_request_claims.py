"""Claims of replicas of a gateway on requests, in a real store."""

from collections.abc import AsyncIterator

import pytest

from turnmill.trajectories.client import StoreClient, deadline_in
from turnmill.trajectories.request_claims import RequestClaims


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[StoreClient]:
    """A client of a store."""
    client = StoreClient(redis_url)
    yield client
    await client.close()


async def test_a_replica_takes_over_a_claim_of_its_own_that_it_has_not_released_yet(client):
    replica, other = RequestClaims(client, "run"), RequestClaims(client, "run")
    try:
        first = await replica.claim("a", "request", deadline=deadline_in(10))
        replica.release(first)

        again = await replica.claim("a", "request", deadline=deadline_in(10))
        of_other = await other.claim("a", "request", deadline=deadline_in(10))
    finally:
        await replica.close()
        await other.close()

    assert again.held
    assert again.claimant != first.claimant
    assert (of_other.held, of_other.claimant) == (False, again.claimant)
