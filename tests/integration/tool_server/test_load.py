"""What hostile requests may cost a server: a second of work before `/health` answers, and 100 MB."""

from collections.abc import Iterator

import pytest

from support.hostile_requests import Watch, bomb_site, open_bombs, send_many_actions, slow_connections
from support.server_process import NewServer, ServerProcess

pytestmark = pytest.mark.slow

MAX_WORK_SECONDS, MAX_BYTES = 1.0, 100e6


@pytest.fixture
def bomb_url() -> Iterator[str]:
    with bomb_site() as url:
        yield url


@pytest.fixture
def server(new_server: NewServer) -> ServerProcess:
    settings = ("--set", "BROWSER_PRIVATE_ADDRESSES=allow")
    server = new_server("--tool_type", "text_browser,trial", "--max_concurrent_requests", "256", *settings)
    server.observe("count")
    return server


def check(watch: Watch) -> None:
    assert watch.work_seconds <= MAX_WORK_SECONDS
    assert watch.added_bytes <= MAX_BYTES


@pytest.mark.parametrize("num_actions", [100_000, pytest.param(1_000_000, marks=pytest.mark.nightly)])
def test_health_answers_beside_very_many_actions(server: ServerProcess, num_actions: int):
    with Watch(server) as watch:
        assert set(send_many_actions(server, num_actions)) == {422}
    check(watch)


@pytest.mark.nightly
def test_health_answers_beside_slow_connections(server: ServerProcess):
    with Watch(server) as watch, slow_connections(server):
        for _ in range(100):
            assert server.http.get("/health").status_code == 200
    check(watch)


def test_health_answers_beside_a_nested_bomb(server: ServerProcess, bomb_url: str):
    with Watch(server) as watch:
        assert set(open_bombs(server, bomb_url)) <= {200, 503}
    check(watch)
