"""What is noticed of actors that Ray kills to save the memory of their machine."""

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import ray
from ray.actor import ActorHandle

from support.server_process import eventually
from turnmill.observability.run_folder import RunFolder
from turnmill.runs import queue_deaths
from turnmill.training.verl import engines
from turnmill.training.verl.shared_engines import wait_for_death


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """Start a Ray that kills whatever has a process, as the machine always uses more than a thousandth."""
    full = {"memory_usage_threshold": 0.001, "memory_monitor_refresh_ms": 100}
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, _system_config=full)
    yield
    ray.shutdown()


@ray.remote(num_cpus=0)
class Server:
    """An engine, or a process of the queue."""

    async def live(self) -> None:
        """Never return."""
        await asyncio.Event().wait()


@pytest.fixture
def killed() -> ActorHandle:
    """Return an actor that Ray has killed."""
    server = Server.remote()
    with pytest.raises(ray.exceptions.OutOfMemoryError):
        ray.get(server.live.remote(), timeout=120)
    return server


def test_an_engine_that_shares_devices_with_the_trainer(killed):
    assert wait_for_death([killed], threading.Event())


def test_an_engine_on_devices_of_its_own(killed):
    replica = SimpleNamespace(servers=[killed], workers=[])

    assert engines._has_died(engines._actors(replica))


def test_a_process_of_the_queue(killed, tmp_path, monkeypatch):
    monkeypatch.setattr(ray.util, "list_named_actors", list)
    monkeypatch.setattr(ray, "get_actor", lambda name, namespace: killed)
    folder = RunFolder(tmp_path)

    with queue_deaths.queue_deaths_noticed(folder):
        failure = eventually(folder.read_failure, seconds=60)

    assert failure.cause == "queue_died"
