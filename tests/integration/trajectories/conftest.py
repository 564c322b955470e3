"""A store, servers that share it, and a link to it that can fail, for the tests of this folder."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from support.contained_tests import bring_loopback_up, can_contain, inside, run_contained
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
def toxiproxy() -> Iterator[Toxiproxy | None]:
    program = toxiproxy_server()
    if program is None:
        pytest.skip(f"faults need toxiproxy-server in PATH, or {CLUSTER} with the path of the cluster script")
    if not inside():
        # The test runs in the container, with a proxy there.
        if not can_contain():
            pytest.skip("faults need unshare and the right to make namespaces")
        yield None
        return
    bring_loopback_up()
    with Toxiproxy(program) as toxiproxy:
        yield toxiproxy


@pytest.fixture(scope="session")
def tcp_url(toxiproxy: Toxiproxy | None) -> Iterator[str]:
    """The URL of a store with a TCP port, for links to it."""
    if toxiproxy is None:
        yield "redis://127.0.0.1:1"
        return
    with EmbeddedStore(tcp=True) as store:
        yield store.url


@pytest.fixture
def link(toxiproxy: Toxiproxy | None, tcp_url: str) -> Link | None:
    return None if toxiproxy is None else toxiproxy.link(urlsplit(tcp_url).port or 0)


@pytest.fixture
def linked_url(link: Link | None, tcp_url: str) -> str:
    """The store's URL through the link."""
    if link is None:
        return tcp_url
    parts = urlsplit(tcp_url)
    return parts._replace(netloc=f":{parts.password}@127.0.0.1:{link.port}").geturl()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run tests with a link in a container: a separate process without network access."""
    if "link" not in pyfuncitem.fixturenames or inside():
        return None
    run_contained(pyfuncitem)
    return True
