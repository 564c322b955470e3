"""Engines that come and go, without Ray: which of them get weights, and which are started anew."""

from types import SimpleNamespace
from typing import Any

import pytest

from turnmill.training.verl import engines as module
from turnmill.training.verl.engines import Engines

DEMAND: Any = None


class Replica:
    """An engine of verl's, by what is asked of it here."""

    resource_pool = None

    def __init__(self, replica_rank: int, **_: Any) -> None:
        self.replica_rank = replica_rank
        self.servers, self.workers = [f"server-{replica_rank}"], [f"worker-{replica_rank}"]
        self.server_address, self.server_handle = f"10.0.0.{replica_rank}", object()


class TrainingWorkers:
    """verl's group of training processes: how often each says that the last transfer is not over."""

    world_size = 2

    def __init__(self) -> None:
        self.busy = 0

    def execute_checkpoint_engine(self, methods: list[str]) -> list[bool]:
        """Answer for each process."""
        assert methods == ["is_idle"] * self.world_size
        self.busy -= 1
        return [True, self.busy < 0]


class Weights:
    """verl's manager of weights: the replicas that take part in a transfer."""

    def __init__(self) -> None:
        self.backend = "gloo"
        self.actor_wg = TrainingWorkers()
        self.replicas = [Replica(0), Replica(1)]

    def add_replicas(self, replicas: list[Replica]) -> None:
        """As verl's."""
        self.replicas += replicas

    def remove_replicas(self, replicas: list[Replica]) -> None:
        """As verl's."""
        self.replicas = [replica for replica in self.replicas if replica not in replicas]


class Start:
    """A start that is ready when the test says so."""

    made: list["Start"]

    def __init__(self, replica: Replica, demand: Any) -> None:
        self.replica, self.error, self.answers = replica, None, [False]
        Start.made.append(self)

    @property
    def is_ready(self) -> bool:
        """The answers one after the other, the last one again and again."""
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class World:
    """The engines of a run, and those that have died."""

    def __init__(self) -> None:
        self.dead: set[str] = set()
        self.killed: list[str] = []
        self.weights = Weights()
        self.transfers: list[list[int]] = []
        self.served: list[str] = []
        balancer = SimpleNamespace(remove_servers=_Remote([]), add_servers=_Remote(self.served))
        self.engines = Engines(
            SimpleNamespace(
                global_load_balancer=balancer,
                rollout_replica_class=Replica,
                rollout_config=SimpleNamespace(n_gpus_per_node=1),
                model_config=None,
            ),
            self.weights,
            demand=DEMAND,
            wait_seconds=60,
        )

    def transfer(self, *dying: str) -> None:
        """A transfer of weights, which a dead engine breaks; those `dying` die in its middle."""

        def update() -> None:
            if dying and not self.dead.issuperset(dying):
                self.dead.update(dying)
                raise RuntimeError("Connection closed by peer")
            ranks = [replica.replica_rank for replica in self.weights.replicas]
            assert not self.dead.intersection(f"server-{rank}" for rank in ranks), "a dead engine took part"
            self.transfers.append(ranks)

        self.engines.update_weights(update)


class _Remote:
    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def remote(self, servers: Any) -> None:
        """Keep the addresses."""
        self._calls += servers


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(Engines, "_move_load_balancer_to_this_node", lambda self: None)
    monkeypatch.setattr(module, "_EngineStart", Start)
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(module, "NOTICE_SECONDS", 0.0)
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(Start, "made", [], raising=False)
    made = World()
    monkeypatch.setattr(module, "_has_died", lambda actors: bool(made.dead.intersection(actors)))
    monkeypatch.setattr(module.ray, "get", lambda answer: answer)
    monkeypatch.setattr(module.ray, "kill", made.killed.append)
    return made


def test_an_engine_in_place_of_a_dead_one_serves_from_the_next_transfer_on(world):
    world.dead.add("server-1")
    world.transfer()
    (start,) = Start.made
    start.answers = [True]

    world.transfer()

    assert world.transfers == [[0], [0, 2]]


def test_one_that_died_again_before_it_served_is_left_out_and_another_is_started(world):
    world.dead.add("server-1")
    world.transfer()
    (start,) = Start.made
    start.answers = [True]
    world.dead.add("worker-2")

    world.transfer()
    Start.made[-1].answers = [True]
    world.transfer()

    assert world.transfers == [[0], [0], [0, 3]]
    assert {"server-2", "worker-2"} <= set(world.killed)


def test_one_that_turns_ready_while_it_is_looked_at_is_not_lost(world):
    world.dead.add("server-1")
    world.transfer()
    (start,) = Start.made
    start.answers = [False, True]

    world.transfer()
    world.transfer()

    assert world.transfers[-1] == [0, 2]


def test_engines_that_are_left_get_the_weights_again_if_one_dies_during_a_transfer(world):
    world.weights.actor_wg.busy = 3

    world.transfer("worker-1")

    assert world.transfers == [[0]]
    assert world.weights.actor_wg.busy < 0
    assert {"server-1", "worker-1"} == set(world.killed)


def test_a_new_engine_serves_after_the_repeated_transfer_if_another_dies_during_its_first(world):
    world.dead.add("server-1")
    world.transfer()
    Start.made[0].answers = [True]

    world.transfer("worker-0")

    assert world.transfers == [[0], [2]]
    assert world.served == ["10.0.0.2"]


def test_a_new_engine_that_dies_during_its_first_transfer_never_serves(world):
    world.dead.add("server-1")
    world.transfer()
    Start.made[0].answers = [True]

    world.transfer("server-2")

    assert world.transfers == [[0], [0]]
    assert world.served == []


def test_a_transfer_waits_for_another_engine_if_the_last_one_dies_during_it(world, monkeypatch):
    class ReadyStart(Start):
        """Ready at once."""

        is_ready = True

    world.dead.add("server-1")
    monkeypatch.setattr(module, "_EngineStart", ReadyStart)

    world.transfer("server-0", "server-2")

    assert world.transfers == [[3, 4]]
    assert sorted(world.served) == ["10.0.0.3", "10.0.0.4"]


def test_a_transfer_that_fails_while_every_engine_lives_ends_the_run(world):
    with pytest.raises(RuntimeError, match="Connection closed"):
        world.transfer("nobody")


def test_a_transfer_over_nccl_is_not_repeated(world):
    world.weights.backend = "nccl"

    with pytest.raises(RuntimeError, match="Connection closed"):
        world.transfer("worker-1")
