"""A store for the tests of this folder."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from uuid import uuid4

import pytest

from turnmill.trajectories.embedded import EmbeddedStore
from turnmill.trajectories.settings import StoreSettings
from turnmill.trajectories.store import TrajectoryStore

NewServer = Callable[..., TrajectoryStore]


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    with EmbeddedStore() as store:
        yield store.url


@pytest.fixture
async def new_server(redis_url: str) -> AsyncIterator[NewServer]:
    """Servers of one run, each with connections and a cache of its own."""
    run = uuid4().hex
    async with AsyncExitStack() as stack:

        def new(settings: StoreSettings | None = None, url: str = redis_url) -> TrajectoryStore:
            store = TrajectoryStore.from_url(url, run, settings)
            stack.push_async_callback(store.close)
            return store

        yield new
