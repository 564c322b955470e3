"""Replacement of dead engines, without Ray: which engines receive weights and which are started."""

from types import SimpleNamespace
from typing import Any

import pytest

from turnmill.core.errors import RunFailedError
from turnmill.training.verl import engines as module
from turnmill.training.verl.engines import Engines

DEMAND: Any = None


class Replica:
    """The attributes of verl's rollout replica that are used here."""

    resource_pool = None

    def __init__(self, replica_rank: int, **_: Any) -> None:
        self.replica_rank = replica_rank
        self.servers, self.workers = [f"server-{replica_rank}"], [f"worker-{replica_rank}"]
        self.server_address, self.server_handle = f"10.0.0.{replica_rank}", object()


class TrainingWorkers:
    """verl's training processes; the second is busy with the last weight sync for so many checks."""

    world_size = 2

    def __init__(self) -> None:
        self.busy = 0

    def execute_checkpoint_engine(self, methods: list[str]) -> list[bool]:
        """Return for each process whether it is idle."""
        assert methods == ["is_idle"] * self.world_size
        self.busy -= 1
        return [True, self.busy < 0]


class CheckpointManager:
    """verl's checkpoint manager, reduced to the replicas that receive weights."""

    def __init__(self) -> None:
        self.backend = "gloo"
        self.actor_wg = TrainingWorkers()
        self.replicas = [Replica(0), Replica(1)]

    def add_replicas(self, replicas: list[Replica]) -> None:
        """Send weights to these replicas as well."""
        self.replicas += replicas

    def remove_replicas(self, replicas: list[Replica]) -> None:
        """Stop sending weights to these replicas."""
        self.replicas = [replica for replica in self.replicas if replica not in replicas]


class EngineStart:
    """The start of an engine that becomes ready when the test says so."""

    started: list["EngineStart"]

    def __init__(self, replica: Replica, demand: Any) -> None:
        self.replica, self.error, self.answers = replica, None, [False]
        self.has_room = False
        EngineStart.started.append(self)

    @property
    def is_ready(self) -> bool:
        """The next answer; the last one is repeated."""
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class EnginesHarness:
    """The engines of a run on test doubles, and the addresses of dead ones."""

    def __init__(self) -> None:
        self.dead: set[str] = set()
        self.killed: list[str] = []
        self.weights = CheckpointManager()
        self.synced_ranks: list[list[int]] = []
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

    def sync_weights(self, *dying: str) -> None:
        """Hand new weights to the engines; the actors named in `dying` die during the first try."""

        def update() -> None:
            if dying and not self.dead.issuperset(dying):
                self.dead.update(dying)
                raise RuntimeError("Connection closed by peer")
            self._send_weights()

        self.engines.update_weights(update)

    def wait_for_rows(self) -> None:
        """Check engines as the trainer does while it waits."""
        self.engines.replace_dead_while_waiting(self._send_weights)

    def _send_weights(self) -> None:
        ranks = [replica.replica_rank for replica in self.weights.replicas]
        assert not self.dead.intersection(f"server-{rank}" for rank in ranks), "a dead engine was sent weights"
        self.synced_ranks.append(ranks)


class _Remote:
    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def remote(self, servers: Any) -> None:
        """Record the addresses."""
        self._calls += servers


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> EnginesHarness:
    monkeypatch.setattr(Engines, "_move_load_balancer_to_this_node", lambda self: None)
    monkeypatch.setattr(module, "_EngineStart", EngineStart)
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(module, "NOTICE_SECONDS", 0.0)
    monkeypatch.setattr(module.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(EngineStart, "started", [], raising=False)
    harness = EnginesHarness()
    monkeypatch.setattr(module, "_has_died", lambda actors: bool(harness.dead.intersection(actors)))
    monkeypatch.setattr(module.ray, "get", lambda answer: answer)
    monkeypatch.setattr(module.ray, "kill", harness.killed.append)
    return harness


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, as one number that a test changes."""
    time = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: time[0])
    return time


def test_a_replacement_engine_serves_from_the_next_weight_sync_on(harness):
    harness.dead.add("server-1")
    harness.sync_weights()
    (start,) = EngineStart.started
    start.answers = [True]

    harness.sync_weights()

    assert harness.synced_ranks == [[0], [0, 2]]


def test_a_replacement_engine_that_dies_before_serving_is_replaced_again(harness):
    harness.dead.add("server-1")
    harness.sync_weights()
    (start,) = EngineStart.started
    start.answers = [True]
    harness.dead.add("worker-2")

    harness.sync_weights()
    EngineStart.started[-1].answers = [True]
    harness.sync_weights()

    assert harness.synced_ranks == [[0], [0], [0, 3]]
    assert {"server-2", "worker-2"} <= set(harness.killed)


def test_an_engine_that_becomes_ready_during_the_check_is_kept(harness):
    harness.dead.add("server-1")
    harness.sync_weights()
    (start,) = EngineStart.started
    start.answers = [False, True]

    harness.sync_weights()
    harness.sync_weights()

    assert harness.synced_ranks[-1] == [0, 2]


def test_a_weight_sync_is_repeated_with_the_remaining_engines_if_one_dies_during_it(harness):
    harness.weights.actor_wg.busy = 3

    harness.sync_weights("worker-1")

    assert harness.synced_ranks == [[0]]
    assert harness.weights.actor_wg.busy < 0
    assert {"server-1", "worker-1"} == set(harness.killed)


def test_a_new_engine_serves_after_the_repeated_weight_sync_if_another_dies_during_its_first(harness):
    harness.dead.add("server-1")
    harness.sync_weights()
    EngineStart.started[0].answers = [True]

    harness.sync_weights("worker-0")

    assert harness.synced_ranks == [[0], [2]]
    assert harness.served == ["10.0.0.2"]


def test_a_new_engine_that_dies_during_its_first_weight_sync_never_serves(harness):
    harness.dead.add("server-1")
    harness.sync_weights()
    EngineStart.started[0].answers = [True]

    harness.sync_weights("server-2")

    assert harness.synced_ranks == [[0], [0]]
    assert harness.served == []


def test_a_weight_sync_waits_for_another_engine_if_the_last_one_dies_during_it(harness, monkeypatch):
    class ReadyStart(EngineStart):
        """The start of an engine that is ready at once."""

        is_ready = True

    harness.dead.add("server-1")
    monkeypatch.setattr(module, "_EngineStart", ReadyStart)

    harness.sync_weights("server-0", "server-2")

    assert harness.synced_ranks == [[3, 4]]
    assert sorted(harness.served) == ["10.0.0.3", "10.0.0.4"]


def test_engines_are_replaced_while_the_trainers_processes_end_a_failed_sync(harness, clock, monkeypatch):
    """That may take longer than a run waits for an engine."""
    ask, started = harness.weights.actor_wg.execute_checkpoint_engine, []

    def ask_for_long(methods: list[str]) -> list[bool]:
        started.append(len(EngineStart.started))
        for start in EngineStart.started:
            start.answers = [True]
        clock[0] += 100.0
        return ask(methods)

    monkeypatch.setattr(harness.weights.actor_wg, "execute_checkpoint_engine", ask_for_long)

    harness.sync_weights("server-0", "server-1")

    assert started == [2]
    assert harness.synced_ranks == [[2, 3]]


def test_training_goes_on_without_any_engine_and_the_next_one_gets_the_weights_of_then(harness):
    harness.dead |= {"server-0", "server-1"}
    harness.sync_weights()
    harness.sync_weights()
    assert harness.synced_ranks == []

    EngineStart.started[1].answers = [True]
    harness.sync_weights()

    assert harness.synced_ranks == [[3]]
    assert harness.served == ["10.0.0.3"]


def test_the_first_of_new_engines_gets_weights_while_the_trainer_waits_for_rows(harness, clock):
    harness.dead |= {"server-0", "server-1"}
    harness.sync_weights()

    harness.wait_for_rows()
    EngineStart.started[0].answers = [True]
    clock[0] += module.CHECK_SECONDS
    harness.wait_for_rows()

    assert harness.synced_ranks == [[2]]
    assert harness.served == ["10.0.0.2"]


def test_a_run_that_waits_without_any_engine_ends_after_a_while(harness, clock):
    harness.dead |= {"server-0", "server-1"}
    clock[0] = 100.0
    harness.wait_for_rows()
    clock[0] = 160.0
    harness.wait_for_rows()

    clock[0] = 160.0 + module.CHECK_SECONDS
    with pytest.raises(RunFailedError, match="none was replaced within 60 s"):
        harness.wait_for_rows()


@pytest.mark.parametrize(("behind", "has_room", "ends"), [(3600, False, True), (59, False, False), (3600, True, False)])
def test_a_run_does_not_wait_for_an_engine_where_ray_stands_still_for_longer(
    harness, clock, monkeypatch, behind: float, has_room: bool, ends: bool
):
    """After a step back of the clock; a start that found room before, or on another machine, is waited for."""
    monkeypatch.setattr(harness.engines, "_clock", SimpleNamespace(seconds_behind=lambda: behind))
    harness.dead |= {"server-0", "server-1"}
    harness.wait_for_rows()
    EngineStart.started[1].has_room = has_room
    clock[0] += module.CHECK_SECONDS

    if ends:
        with pytest.raises(RunFailedError, match="for 3600 s more, Ray does not notice"):
            harness.wait_for_rows()
    else:
        harness.wait_for_rows()


def test_steps_that_need_no_engine_do_not_count_as_waiting_for_one(harness, clock):
    """A start that fails in a long step is repeated for as long as one that fails while rows are waited for."""
    harness.dead |= {"server-0", "server-1"}
    harness.wait_for_rows()
    for _ in range(2):
        clock[0] += 100.0
        harness.sync_weights()
        EngineStart.started[-1].error = RuntimeError("no room")
        harness.wait_for_rows()

    assert harness.synced_ranks == []


def test_a_weight_sync_that_fails_while_every_engine_lives_ends_the_run(harness):
    with pytest.raises(RuntimeError, match="Connection closed"):
        harness.sync_weights("nobody")


def test_a_weight_sync_over_nccl_is_not_repeated(harness):
    harness.weights.backend = "nccl"

    with pytest.raises(RuntimeError, match="Connection closed"):
        harness.sync_weights("worker-1")
