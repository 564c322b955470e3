"""Processes of a run that stand still on any machine of a real Ray cluster."""

import os
import signal
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
import ray
from ray.cluster_utils import Cluster

from support.jobs import job, tool_job
from support.server_process import eventually
from turnmill.core.process_mark import PROCESS_MARK
from turnmill.jobs import parse_job
from turnmill.observability.run_folder import RunFolder
from turnmill.runs import machines
from turnmill.runs.machines import machines_watched

MARK, OTHER_MARK = uuid4().hex, uuid4().hex


@pytest.fixture(scope="module", autouse=True)
def _token() -> None:
    """Have the clusters' processes require the token that this process uses once a Ray of its own has been started.

    Ray decides that once a process, and takes one whose token it does not know for dead.
    """
    ray.init(address="local", num_cpus=0, include_dashboard=False)
    ray.shutdown()


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A Ray cluster of a head without a processor."""
    cluster = Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 0})
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@ray.remote
class Engine:
    """A process of a run."""

    def pid(self) -> int:
        """Return its process id."""
        return os.getpid()


@ray.remote
class ToolLoopWorker:
    """A worker whose trajectories another one resumes."""

    def pid(self) -> int:
        """Return its process id."""
        return os.getpid()


def start(machine: str, mark: str, kind: Any = Engine) -> Any:
    """Start a process of a run on a machine."""
    variables = {"env_vars": {PROCESS_MARK: mark}}
    return kind.options(resources={machine: 0.1}, runtime_env=variables).remote()


def stop(actor: Any) -> None:
    """Stop a process by a signal."""
    os.kill(ray.get(actor.pid.remote()), signal.SIGSTOP)


def has_died(actor: Any) -> bool:
    """Return whether a process has died; one that stands still has not."""
    try:
        ray.get(actor.pid.remote(), timeout=0.1)
    except ray.exceptions.ActorDiedError:
        return True
    except ray.exceptions.GetTimeoutError:
        pass
    return False


def watched() -> set[str]:
    """Return the machines that have a watch."""
    return {
        actor["Address"]["NodeID"]
        for actor in ray._private.state.actors(actor_state_name="ALIVE").values()
        if actor["ActorClassName"].endswith("MachineWatch")
    }


def test_a_process_that_a_signal_stops_is_killed_on_every_machine(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(machines, "LOOK_SECONDS", 0.1)
    spec, folder = parse_job(job()), RunFolder(tmp_path)
    folder.create()
    cluster.add_node(num_cpus=2, resources={"first": 1})
    one, another = start("first", MARK), start("first", OTHER_MARK)

    with machines_watched(spec, folder, MARK, can_retry=True):
        stop(another)
        stop(one)
        assert eventually(lambda: has_died(one), seconds=60)

        late = cluster.add_node(num_cpus=2, resources={"second": 1})
        on_late = start("second", MARK)
        stop(on_late)
        assert eventually(lambda: has_died(on_late), seconds=60)
        assert not has_died(another)

        assert eventually(lambda: late.node_id not in watched(), seconds=60)

    assert eventually(lambda: not watched(), seconds=60)


def test_without_another_attempt_only_workers_are_killed_whose_trajectories_another_resumes(
    cluster, tmp_path, monkeypatch
):
    monkeypatch.setattr(machines, "LOOK_SECONDS", 0.1)
    folder = RunFolder(tmp_path)
    folder.create()
    cluster.add_node(num_cpus=2, resources={"first": 1})
    one, worker = start("first", MARK), start("first", MARK, ToolLoopWorker)

    with machines_watched(parse_job(tool_job()), folder, MARK, can_retry=False):
        stop(one)
        stop(worker)
        assert eventually(lambda: has_died(worker), seconds=60)

        assert not has_died(one)
