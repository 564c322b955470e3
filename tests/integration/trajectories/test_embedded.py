import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from support.server_process import alive
from turnmill.core.errors import SettingsError, StoreUnavailableError, ToolUnavailableError
from turnmill.trajectories import store_supervisor
from turnmill.trajectories.embedded import EmbeddedStore, find_server

OWNER = """
import sys, time
from turnmill.trajectories.embedded import EmbeddedStore
with EmbeddedStore() as store:
    print(store.url, flush=True)
    time.sleep(600)
"""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not come true within 30 s"
        time.sleep(0.01)


def fill(client: redis.Redis) -> None:
    for number in range(100):
        client.set(f"key-{number}", bytes(1024**2))


def folder_of(store_url: str) -> Path:
    return Path(urlsplit(store_url).path).parent


def test_an_embedded_store_exists_until_the_end_of_its_context():
    with EmbeddedStore() as store, redis.Redis.from_url(store.url) as client:
        assert client.ping()
        folder = folder_of(store.url)

    assert not folder.exists()
    with pytest.raises(redis.exceptions.ConnectionError), redis.Redis.from_url(f"unix://{folder}/store.sock") as client:
        client.ping()


async def test_an_embedded_store_can_be_used_from_coroutines():
    async with EmbeddedStore() as store:
        async with redis.asyncio.Redis.from_url(store.url) as client:
            assert await client.ping()
        folder = folder_of(store.url)

    assert not folder.exists()


def test_only_its_user_can_reach_an_embedded_store():
    with EmbeddedStore() as store:
        folder = folder_of(store.url)

        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "store.sock").stat().st_mode) == 0o600


def test_an_embedded_store_on_a_port_asks_for_a_password():
    with EmbeddedStore(tcp=True) as store:
        parts = urlsplit(store.url)
        assert parts.hostname == "127.0.0.1"
        with redis.Redis.from_url(store.url) as client:
            assert client.ping()
        with (
            redis.Redis(port=parts.port, retry=Retry(NoBackoff(), 0)) as client,
            pytest.raises(redis.exceptions.AuthenticationError),
        ):
            client.ping()


def test_the_password_is_on_no_command_line():
    with EmbeddedStore(tcp=True) as store:
        password = urlsplit(store.url).password
        commands = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]

        assert any("server.conf" in command for command in commands)
        assert not any(password in command for command in commands)


def test_the_memory_of_an_embedded_store_is_bounded_and_nothing_is_evicted():
    with EmbeddedStore(max_bytes=8 * 1024**2) as store, redis.Redis.from_url(store.url) as client:
        client.set("first", bytes(1024**2))

        with pytest.raises(redis.exceptions.OutOfMemoryError):
            fill(client)

        assert client.get("first") is not None


def test_an_embedded_store_with_a_folder_keeps_its_data(tmp_path):
    folder = tmp_path / "kept" / "here"
    with EmbeddedStore(keep_in=folder) as store, redis.Redis.from_url(store.url) as client:
        client.set("key", "value")

    with EmbeddedStore(keep_in=folder) as store, redis.Redis.from_url(store.url) as client:
        assert client.get("key") == b"value"


def supervisor_of(store: EmbeddedStore) -> psutil.Process:
    (supervisor,) = (child for child in psutil.Process().children() if str(store.folder) in child.cmdline())
    return supervisor


def kill_server(supervisor: psutil.Process) -> None:
    (server,) = supervisor.children()
    server.kill()
    wait_until(lambda: not alive(server.pid))


@pytest.mark.parametrize("tcp", [False, True])
def test_a_crashed_server_with_a_folder_is_restarted_with_its_data(tmp_path, tcp):
    with EmbeddedStore(keep_in=tmp_path, tcp=tcp) as store, redis.Redis.from_url(store.url) as client:
        supervisor = supervisor_of(store)
        for number in range(3):
            client.set(f"key-{number}", "value")
            kill_server(supervisor)
            wait_until(lambda: answers(client))

        assert sorted(client.keys()) == [b"key-0", b"key-1", b"key-2"]


@pytest.mark.parametrize("tcp", [False, True])
def test_a_server_that_stands_still_is_replaced_by_one_with_its_data(tmp_path, tcp):
    with EmbeddedStore(keep_in=tmp_path, tcp=tcp) as store, redis.Redis.from_url(store.url, socket_timeout=5) as client:
        client.set("key", "value")
        supervisor = supervisor_of(store)
        (stopped,) = supervisor.children()

        stopped.suspend()

        wait_until(lambda: not alive(stopped.pid))
        wait_until(lambda: answers(client))
        assert client.get("key") == b"value"
        assert supervisor.is_running()


@pytest.mark.parametrize("answered", [False, True])
def test_a_server_that_does_nothing_stands_still_unless_it_answers(monkeypatch, answered):
    monkeypatch.setattr(store_supervisor, "_answers", lambda address: answered)
    stillness = store_supervisor._Stillness()
    with subprocess.Popen(["sleep", "600"]) as server:
        try:
            if not answered:
                wait_until(lambda: stillness.noted(server.pid, ""))
            assert [stillness.noted(server.pid, "") for _ in range(5)] == [not answered] * 5
        finally:
            server.kill()


def test_a_server_that_computes_for_long_is_kept(tmp_path):
    with EmbeddedStore(keep_in=tmp_path) as store, redis.Redis.from_url(store.url, socket_timeout=60) as client:
        (server,) = supervisor_of(store).children()

        # Longer than three questions; after five seconds a server answers that it is busy.
        client.eval("local begin = redis.call('TIME')[1]; while redis.call('TIME')[1] - begin < 8 do end", 0)

        assert supervisor_of(store).children() == [server]


def test_a_crashed_server_without_a_folder_stays_down():
    with EmbeddedStore() as store, redis.Redis.from_url(store.url) as client:
        client.set("key", "value")
        supervisor = supervisor_of(store)

        kill_server(supervisor)

        supervisor.wait(10)
        assert not answers(client)


def answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.exceptions.ConnectionError:
        return False


def test_a_path_too_long_for_a_socket_is_replaced_by_a_port(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))

    with EmbeddedStore() as store, redis.Redis.from_url(store.url) as client:
        assert client.ping()

    assert list(long.iterdir()) == []


def test_a_store_that_cannot_start_raises_an_error_with_the_reason():
    with pytest.raises(StoreUnavailableError, match="maxmemory"):
        EmbeddedStore(max_bytes=-1).start()


def test_a_machine_without_a_writable_folder_is_an_error_with_a_way_out(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "not there"))

    with pytest.raises(SettingsError, match="Set TMPDIR"):
        EmbeddedStore().start()


def test_a_missing_server_is_an_error_that_names_the_package_to_install(monkeypatch):
    monkeypatch.setenv("PATH", "")

    with pytest.raises(ToolUnavailableError, match="install the Python package no-such-package"):
        find_server("no-such-package")


@pytest.fixture
def owner():
    """A process with an embedded store, and the store's URL."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    url = process.stdout.readline().strip()
    try:
        # Without a URL the folder would be the current one: nothing must be deleted then.
        assert url.startswith("unix:///"), "the owner's store did not start"
        yield process, url
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    shutil.rmtree(folder_of(url), ignore_errors=True)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_embedded_store_ends_with_its_owner(owner, number):
    process, url = owner
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) == 2

    process.send_signal(number)
    process.wait()

    wait_until(lambda: not folder_of(url).exists())
    wait_until(lambda: not any(child.is_running() for child in family))


def test_no_server_outlives_its_supervisor(owner):
    process, _ = owner
    supervisor = psutil.Process(process.pid).children()[0]
    server = supervisor.children()[0]

    supervisor.kill()

    wait_until(lambda: not server.is_running())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_supervisor_that_gets_a_signal_stops_its_server_and_deletes_the_folder(owner, number):
    process, url = owner
    supervisor = psutil.Process(process.pid).children()[0]
    server = supervisor.children()[0]

    supervisor.send_signal(number)

    wait_until(lambda: not alive(supervisor.pid))
    assert not alive(server.pid)
    assert not folder_of(url).exists()


def test_ctrl_c_in_the_terminal_reaches_only_the_owner(owner):
    process, _ = owner
    supervisor = psutil.Process(process.pid).children()[0]

    assert os.getsid(supervisor.pid) != os.getsid(process.pid)
