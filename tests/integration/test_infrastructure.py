"""Ray outlives an attempt that fails, and is started again where it may be why."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import psutil
import pytest
import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from support.jobs import job, tool_job
from support.server_process import alive, eventually
from turnmill.core.activity import is_stopped
from turnmill.jobs import parse_job
from turnmill.observability.progress import Progress, write_progress
from turnmill.observability.run_folder import RunFolder
from turnmill.runs import processes
from turnmill.runs.fork_server import modules
from turnmill.runs.infrastructure import NODE, Infrastructure
from turnmill.runs.ray_cluster import PATIENCE

ORPHAN = """
import os, signal, sys, time
from pathlib import Path

import psutil

from support.jobs import job
from turnmill.jobs import parse_job
from turnmill.observability.run_folder import RunFolder
from turnmill.runs import processes
from turnmill.runs.fork_server import modules
from turnmill.runs.ray_cluster import ray_cluster

parent = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == parent:
    time.sleep(0.05)
folder = RunFolder(Path(sys.argv[1]))
Path("began").write_text(f"{os.getpid()} {os.getppid()}")
modules.EARLY = modules.LATE = ()
with processes.owned(folder.path) as owner, ray_cluster(parse_job(job()), "cpu", owner, folder):
    import ray

    ray.get(ray.put("the node answers"))
    node = next(child for child in psutil.Process().children() if child.name() == "raylet")
    node.send_signal(signal.SIGKILL)
    node.wait(10)
    time.sleep(3)
Path("ended").touch()
"""

REQUEST = """
import sys, threading, time
from contextlib import closing
from pathlib import Path

import psutil

from support.jobs import job
from turnmill.jobs import parse_job
from turnmill.observability.run_folder import RunFolder
from turnmill.runs import processes
from turnmill.runs.fork_server import modules
from turnmill.runs.infrastructure import Infrastructure

folder, mine = RunFolder(Path(sys.argv[1])), parse_job(job(retries=2))
modules.EARLY, modules.LATE = (), ("turnmill.runs.fork_server.patch_ray",)
with processes.owned(folder.path) as owner, closing(Infrastructure(mine, folder, "cpu", owner)) as infrastructure:
    infrastructure.start()
    import ray

    controller = next(child for child in psutil.Process().children() if child.name() == "gcs_server")
    controller.kill()
    threading.Thread(target=ray.nodes, daemon=True).start()
    time.sleep(3)
    infrastructure.close()
    infrastructure.start()
    time.sleep(65)
    assert ray.nodes()
"""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    return folder


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    """What a run sets for its processes, such as that they are offline, is not for the tests that follow here."""
    with patch.dict(os.environ):
        yield


@pytest.fixture
def infrastructure(folder: RunFolder, monkeypatch: pytest.MonkeyPatch, request) -> Iterator[Infrastructure]:
    """That of a run whose fork server has imported nothing but Ray; with the parameter's job, or one without tools."""
    monkeypatch.setattr(modules, "EARLY", ())
    monkeypatch.setattr(modules, "LATE", ("turnmill.runs.fork_server.patch_ray",))
    mine = parse_job(getattr(request, "param", job(retries=2)))
    with (
        processes.owned(folder.path) as owner,
        closing(Infrastructure(mine, folder, "cpu", owner)) as infrastructure,
    ):
        infrastructure.start()
        yield infrastructure


@ray.remote(num_cpus=0)
class Trainer:
    """Reserves a device and starts a process there, as the actor does that trains."""

    def start(self) -> int:
        self.group = ray.util.placement_group([{"CPU": 1, "GPU": 1}])
        ray.get(self.group.ready())
        where = PlacementGroupSchedulingStrategy(self.group)
        self.worker = Worker.options(name="worker", scheduling_strategy=where).remote()
        return int(ray.get(self.worker.pid.remote()))


@ray.remote(num_cpus=1, num_gpus=1)
class Worker:
    def pid(self) -> int:
        return os.getpid()


def attempt(folder: RunFolder, *, steps: int, phase: str = "training") -> int:
    """Do as an attempt does that fails after so many steps; return a process that it leaves."""
    trainer = Trainer.options(name="trainer").remote()
    write_progress(folder, Progress(phase=phase, done=steps))
    return int(ray.get(trainer.start.remote(), timeout=60))


def run_script(script: str, folder: RunFolder, cwd: Path, *, timeout: int) -> None:
    """Run a script for a run folder, in a process that does not have this one's patience with Ray."""
    environment = {name: value for name, value in os.environ.items() if name not in PATIENCE}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    subprocess.run([sys.executable, "-c", script, folder.path], cwd=cwd, env=environment, check=True, timeout=timeout)


def node() -> str:
    return str(ray.nodes()[0]["NodeID"])


def test_the_next_attempt_finds_ray_without_the_processes_of_the_last_one(
    infrastructure: Infrastructure, folder: RunFolder
):
    first, server = node(), infrastructure._cluster.fork_server.server_pid()
    left = [attempt(folder, steps=1)]

    infrastructure.clear()
    infrastructure.start()
    left.append(attempt(folder, steps=2))
    os.kill(left[-1], signal.SIGSTOP)
    infrastructure.clear()
    infrastructure.start()
    left.append(attempt(folder, steps=3))

    assert node() == first
    assert psutil.Process(left[-1]).ppid() == server
    assert [alive(pid) for pid in left] == [False, False, True]

    # It came no further.
    infrastructure.clear()
    infrastructure.start()
    left.append(attempt(folder, steps=3))
    infrastructure.clear()
    assert not ray.is_initialized()
    infrastructure.start()
    assert node() != first
    assert not any(map(alive, left))

    # It did not even begin.
    left.append(attempt(folder, steps=4, phase="starting"))
    infrastructure.clear()
    assert not ray.is_initialized()
    assert not any(map(alive, left))


@pytest.mark.parametrize(
    ("title", "by"),
    [
        ("raylet", signal.SIGKILL),
        pytest.param("gcs_server", signal.SIGKILL, marks=pytest.mark.nightly),
        ("gcs_server", signal.SIGSTOP),
        pytest.param("fork_server.server", signal.SIGKILL, marks=pytest.mark.nightly),
        pytest.param("fork_server.server", signal.SIGSTOP, marks=pytest.mark.nightly),
    ],
)
def test_ray_is_started_again_if_one_of_its_processes_has_died_or_stands_still(
    infrastructure: Infrastructure, folder: RunFolder, title: str, by: signal.Signals
):
    first, left = node(), attempt(folder, steps=1)
    if title in NODE:
        process = next(child for child in psutil.Process().children() if child.name() == title)
    else:
        process = psutil.Process(infrastructure._cluster.fork_server.server_pid())
    process.send_signal(by)
    eventually(lambda: is_stopped(process.pid) or not alive(process.pid), seconds=10)

    infrastructure.clear()
    infrastructure.start()

    assert not alive(left)
    assert node() != first


def test_ray_is_started_again_at_once_if_the_clock_was_set_back(
    infrastructure: Infrastructure, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
):
    first, left = node(), attempt(folder, steps=1)
    monkeypatch.setattr(infrastructure._clock, "seconds_behind", lambda: 3600.0)

    infrastructure.clear()
    infrastructure.start()

    assert not alive(left)
    assert node() != first


@pytest.mark.parametrize(
    "infrastructure", [tool_job(agent__toolServerUrl="http://127.0.0.1:9", retries=2)], indirect=True, ids=["tools"]
)
def test_a_store_without_its_supervisor_is_started_again(infrastructure: Infrastructure, folder: RunFolder):
    running = infrastructure.start()
    assert running.store is not None
    left, supervisor = attempt(folder, steps=1), running.store.pid
    infrastructure.clear()
    assert infrastructure.start() is running

    os.kill(supervisor, signal.SIGKILL)
    eventually(lambda: not alive(supervisor), seconds=10)
    write_progress(folder, Progress(phase="training", done=2))
    infrastructure.clear()

    assert infrastructure.start() is not running
    assert not alive(left)


def test_a_run_that_goes_on_without_its_shell_outlives_its_node(folder: RunFolder, tmp_path: Path):
    run_script(ORPHAN, folder, tmp_path, timeout=60)
    eventually(lambda: (tmp_path / "began").exists(), seconds=30)
    pid, parent = map(int, (tmp_path / "began").read_text().split())
    if parent != 1:
        pytest.skip("a process of this machine adopts others before init does")

    eventually(lambda: not alive(pid), seconds=60)

    assert (tmp_path / "ended").exists()


@pytest.mark.nightly
def test_a_run_outlives_a_request_that_waited_for_a_dead_controller(folder: RunFolder, tmp_path: Path):
    run_script(REQUEST, folder, tmp_path, timeout=300)
