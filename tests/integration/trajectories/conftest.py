"""A store, servers that share it, and a link to it that can fail, for the tests of this folder."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from support.contained_tests import bring_loopback_up, contain, run_contained
from support.programs import CLUSTER
from support.toxiproxy import Link, Toxiproxy, toxiproxy_server
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
    """Servers of one run, each with its own connections and cache."""
    run = uuid4().hex
    async with AsyncExitStack() as stack:

        def new(settings: StoreSettings | None = None, url: str = redis_url) -> TrajectoryStore:
            store = TrajectoryStore.from_url(url, run, settings)
            stack.push_async_callback(store.close)
            return store

        yield new


@pytest.fixture(scope="session")
def toxiproxy() -> Iterator[Toxiproxy]:
    program = toxiproxy_server()
    if program is None:
        pytest.skip(f"faults need toxiproxy-server in PATH, or {CLUSTER} with the path of the cluster script")
    bring_loopback_up()
    with Toxiproxy(program) as toxiproxy:
        yield toxiproxy


@pytest.fixture(scope="session")
def tcp_url(toxiproxy: Toxiproxy) -> Iterator[str]:
    """The URL of a store with a TCP port, for links to it."""
    with EmbeddedStore(tcp=True) as store:
        yield store.url


@pytest.fixture
def link(toxiproxy: Toxiproxy, tcp_url: str) -> Link:
    """A link to the store that can fail; tests with one run in namespaces of their own."""
    return toxiproxy.link(urlsplit(tcp_url).port or 0)


@pytest.fixture
def linked_url(link: Link, tcp_url: str) -> str:
    """The store's URL through the link."""
    parts = urlsplit(tcp_url)
    return parts._replace(netloc=f":{parts.password}@127.0.0.1:{link.port}").geturl()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    contain(items, "link")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_contained(pyfuncitem)
