"""The end of an attempt whose queue has lost a process, with verl's real queue."""

import os
import signal
from collections.abc import Iterator

import pytest
import ray
import transfer_queue as tq
from verl.utils import transferqueue_utils

from support.server_process import eventually
from turnmill.observability.run_folder import RunFolder
from turnmill.runs import queue_deaths
from turnmill.runs.queue_deaths import CONTROLLER, STORAGE, queue_deaths_noticed
from turnmill.training.verl.config import compose_defaults


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(address="local", include_dashboard=False, log_to_driver=False, num_cpus=4)
    yield
    ray.shutdown()


@pytest.fixture
def queue(cluster) -> Iterator[None]:
    settings = compose_defaults().transfer_queue
    settings.enable, settings.backend.SimpleStorage.num_data_storage_units = True, 2
    tq.init(settings)
    yield
    tq.close()
    transferqueue_utils.TQ_INITIALIZED = False


def process_of(name: str) -> int:
    namespace = queue_deaths.CONTROLLERS_NAMESPACE if name == CONTROLLER else None
    actor = ray.get_actor(name, namespace=namespace)
    return int(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())))


@pytest.mark.parametrize("name", [CONTROLLER, f"{STORAGE}1"])
def test_the_death_of_a_process_of_the_queue_ends_the_attempt(queue, tmp_path, name):
    folder = RunFolder(tmp_path)

    with queue_deaths_noticed(folder):
        os.kill(process_of(name), signal.SIGKILL)
        failure = eventually(folder.read_failure, seconds=60)

    assert failure.cause == "queue_died"
    assert name in str(failure)


def test_a_queue_that_lives_or_is_closed_after_the_training_ends_nothing(queue, tmp_path, monkeypatch):
    monkeypatch.setattr(queue_deaths, "LOOK_SECONDS", 0.05)
    folder, looks, wait = RunFolder(tmp_path), [], ray.wait
    monkeypatch.setattr(ray, "wait", lambda *given, **named: looks.append(found := wait(*given, **named)) or found)

    with queue_deaths_noticed(folder):
        assert eventually(lambda: sum(len(ready) for ready, _ in looks) > 9, seconds=60)
    tq.close()

    assert folder.read_failure() is None


def test_the_reason_is_written_once_the_disk_has_room(queue, tmp_path, monkeypatch):
    monkeypatch.setattr(queue_deaths, "LOOK_SECONDS", 0.05)
    folder, write, tries = RunFolder(tmp_path), RunFolder.write_failure, []

    def write_late(self, error):
        tries.append(error)
        if len(tries) < 3:
            raise OSError(28, "No space left on device")
        write(self, error)

    monkeypatch.setattr(RunFolder, "write_failure", write_late)
    with queue_deaths_noticed(folder):
        os.kill(process_of(CONTROLLER), signal.SIGKILL)
        failure = eventually(folder.read_failure, seconds=60)

    assert (failure.cause, len(tries)) == ("queue_died", 3)
