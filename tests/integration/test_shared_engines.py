"""The end of a training whose engines share devices with the trainer and die, with actors of a real Ray."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import ray
from verl.trainer.ppo.v1 import PPOTrainerSync

from turnmill.core.errors import RunFailedError
from turnmill.training.trainers.shared_engines import SharedEnginesMixin
from turnmill.training.verl.engine_server import EngineServer
from turnmill.training.verl.shared_engines import ended_with


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@ray.remote(num_cpus=0)
class Engine:
    """An engine that has nothing to do."""

    live = EngineServer.live


@ray.remote(num_cpus=0)
class Worker:
    """A worker of the trainer."""

    def send_weights(self) -> None:
        """Wait for a reader that is gone."""
        threading.Event().wait()

    def learn(self) -> str:
        """Return at once."""
        return "learned"


class Sender(PPOTrainerSync):
    """Sends weights, and asks a worker to, as verl's trainers do before and in a training."""

    def on_init_end(self) -> None:
        """Send the first weights."""
        self._send()

    def fit(self, agent_loop_manager: object) -> None:
        """Send weights after a step."""
        self._send()

    def _send(self) -> None:
        ray.get(self.actor_rollout_wg.workers[0].send_weights.remote(), timeout=60)


class Trainer(SharedEnginesMixin, Sender):
    """A trainer whose engines share devices with it."""


def sync_weights(engines, worker) -> None:
    with ended_with(engines, [worker]):
        sending = worker.send_weights.remote()
        ray.kill(engines[1])
        ray.get(sending, timeout=120)


def fail(worker) -> None:
    with ended_with([Engine.remote()], [worker]):
        assert ray.get(worker.learn.remote()) == "learned"
        raise ZeroDivisionError


def test_weights_that_wait_for_a_dead_engine_end_the_attempt():
    engines, worker = [Engine.remote(), Engine.remote()], Worker.remote()

    with pytest.raises(RunFailedError, match="engine has died") as raised:
        sync_weights(engines, worker)

    assert raised.value.cause == "engines_died"


def test_workers_whose_engines_live_are_left_alone():
    worker = Worker.remote()

    with pytest.raises(ZeroDivisionError):
        fail(worker)

    assert ray.get(worker.learn.remote()) == "learned"


def test_engines_that_end_after_the_training_end_nothing(monkeypatch):
    monkeypatch.setattr("turnmill.training.verl.shared_engines.CHECK_SECONDS", 0.1)
    engine, worker = Engine.remote(), Worker.remote()
    # Those of other tests may take a moment to end.
    before = set(threading.enumerate())

    with ended_with([engine], [worker]):
        (watch,) = {thread for thread in threading.enumerate() if thread.name == "server-deaths"} - before
    ray.kill(engine)
    watch.join(timeout=120)

    assert not watch.is_alive()
    assert ray.get(worker.learn.remote()) == "learned"


@pytest.mark.parametrize("sends", [lambda trainer: trainer.on_init_end(), lambda trainer: trainer.fit(None)])
def test_an_engine_that_dies_ends_the_first_transfer_of_weights_as_it_does_any_other(sends):
    engine, trainer = Engine.remote(), object.__new__(Trainer)
    trainer.checkpoint_manager = SimpleNamespace(replicas=[SimpleNamespace(servers=[engine])])
    trainer.actor_rollout_wg = SimpleNamespace(workers=[Worker.remote()])
    ray.kill(engine)

    with pytest.raises(RunFailedError, match="engine has died"):
        sends(trainer)
