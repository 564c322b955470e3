"""Processes of a run that stand still are killed, and no others."""

import ctypes
import importlib
import os
import pkgutil
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import turnmill.rollout
from support.jobs import job, tool_job
from support.server_process import eventually
from turnmill.core import activity
from turnmill.core.activity import runs_of_threads
from turnmill.core.process_mark import PROCESS_MARK
from turnmill.jobs import parse_job
from turnmill.observability.run_folder import RunFolder
from turnmill.rollout.trajectory_worker import TrajectoryWorker
from turnmill.runs import still_processes
from turnmill.runs.still_processes import RayNode, still_processes_killed
from turnmill.training.agent_kinds.verlog import VerlogKind

JOB = parse_job(tool_job())
PTRACE_ATTACH = 16
# Other processes of the test suite may run tests of this file at the same time.
MARK, OTHER_MARK = uuid.uuid4().hex, uuid.uuid4().hex

# As in a worker of Ray's, threads of its own run while the main thread waits.
WORKER = """
import threading
from turnmill.core.activity import show_activity
show_activity()
print("up", flush=True)
threading.Event().wait(600)
"""


# All of its threads wait, as those of a process that is frozen.
SLEEPER = """
import time
print("up", flush=True)
time.sleep(600)
"""

# A thread is there that shows activity elsewhere, and waits here as all others.
FROZEN = f"""
import ctypes
import time
ctypes.CDLL(None).prctl(15, {activity._THREAD.encode()!r}, 0, 0, 0)
print("up", flush=True)
time.sleep(600)
"""

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a process with a title and a mark."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(title: str, *, mark: str = MARK, code: str = WORKER) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [title, "-c", code],
            executable=sys.executable,
            env=os.environ | {PROCESS_MARK: mark, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize("title", ["ray::ToolLoopWorker", "ray::AgentLoopWorkerTQ.ended_prompts"])
def test_a_worker_whose_trajectories_another_resumes_is_killed_before_all_others(start, monkeypatch, title):
    monkeypatch.setattr(still_processes, "STILL_LOOKS", 1000)
    still, working = start(title, code=SLEEPER), start("ray::ToolLoopWorker")
    others = [start(other, code=SLEEPER) for other in ("ray::RewardLoopWorker", "ray::EngineServer")]
    others.append(start("ray::ToolLoopWorker", mark=OTHER_MARK, code=SLEEPER))

    with still_processes_killed(JOB, MARK, can_retry=True):
        assert eventually(lambda: still.poll() is not None, seconds=60)

    assert still.returncode == -signal.SIGKILL
    assert [process.poll() for process in (*others, working)] == [None] * 4


@pytest.mark.parametrize(
    ("title", "watched"),
    [
        ("ray::TurnTaskRunner.run", True),
        ("ray::EngineServer", True),
        ("ray::WorkerDict", True),
        ("ray::ToolLoopWorker", True),
        ("ray::DashboardAgent", False),
        ("python", False),
    ],
)
def test_other_processes_of_the_run_are_killed_later(start, monkeypatch, title, watched):
    """Of an agent without a store, workers are among them, as no other resumes their episodes."""
    monkeypatch.setattr(VerlogKind, "uses_store", False)
    monkeypatch.setattr(still_processes, "RESUMED_LOOKS", 1000)
    monkeypatch.setattr(still_processes, "STILL_LOOKS", 4)
    still, last = start(title, code=SLEEPER), start("ray::TurnTaskRunner", code=SLEEPER)

    with still_processes_killed(parse_job(job()), MARK, can_retry=True):
        assert eventually(lambda: last.poll() is not None and watched == (still.poll() is not None), seconds=60)


@pytest.mark.parametrize("title", ["ray::TurnTaskRunner.run", "ray::EngineServer", "ray::ToolLoopWorker"])
def test_a_process_that_a_signal_has_stopped_is_killed_before_one_that_does_nothing(start, monkeypatch, title):
    monkeypatch.setattr(still_processes, "STILL_LOOKS", 1000)
    monkeypatch.setattr(still_processes, "RESUMED_LOOKS", 1000)
    stopped, idle = start(title), start(title, code=SLEEPER)
    stopped.send_signal(signal.SIGSTOP)

    with still_processes_killed(JOB, MARK, can_retry=True):
        assert eventually(lambda: stopped.poll() is not None, seconds=60)

    assert idle.poll() is None


def test_a_process_that_runs_between_two_stops_was_not_stopped_for_long(start):
    """As `cpulimit` does."""
    process, stops = start("ray::EngineServer"), activity.Stops()

    threads = Path(f"/proc/{process.pid}/task")

    def looks_while_stopped() -> list[int]:
        process.send_signal(signal.SIGSTOP)
        assert eventually(lambda: all("State:\tT" in (each / "status").read_text() for each in threads.iterdir()))
        return [stops.look(process.pid) for _ in range(3)]

    assert looks_while_stopped() == [1, 2, 3]
    before = runs_of_threads(process.pid)
    process.send_signal(signal.SIGCONT)
    assert eventually(lambda: runs_of_threads(process.pid) not in ({}, before), seconds=60)
    assert looks_while_stopped() == [1, 2, 3]


def test_without_another_attempt_only_a_worker_that_another_replaces_is_killed(start, monkeypatch):
    monkeypatch.setattr(still_processes, "STILL_LOOKS", 1)
    trainer, worker = start("ray::TurnTaskRunner"), start("ray::ToolLoopWorker")
    for process in (trainer, worker):
        process.send_signal(signal.SIGSTOP)

    with still_processes_killed(JOB, MARK, can_retry=False):
        assert eventually(lambda: worker.poll() is not None, seconds=60)

    assert trainer.poll() is None


def test_of_processes_with_the_title_of_a_fork_server_only_its_forks_must_do_something(start, monkeypatch):
    """A fork server sleeps between two requests, and a fork shows activity, the one that is frozen here once did."""
    monkeypatch.setattr(still_processes, "STILL_LOOKS", 4)
    title = "python -m turnmill.runs.fork_server.server"
    server, forked, last = start(title, code=SLEEPER), start(title, code=FROZEN), start("ray::A", code=SLEEPER)

    with still_processes_killed(JOB, MARK, can_retry=True):
        assert eventually(lambda: forked.poll() is not None and last.poll() is not None, seconds=60)

    assert server.poll() is None


@pytest.mark.parametrize("can_retry", [True, False])
def test_a_fork_server_that_a_signal_has_stopped_is_killed_if_another_attempt_follows(start, can_retry):
    """Whoever starts a process would wait for it."""
    server, worker = start("python -m turnmill.runs.fork_server.server", code=SLEEPER), start("ray::ToolLoopWorker")
    for process in (server, worker):
        process.send_signal(signal.SIGSTOP)

    with still_processes_killed(JOB, MARK, can_retry=can_retry):
        assert eventually(lambda: worker.poll() is not None and can_retry == (server.poll() is not None), seconds=60)


@pytest.mark.parametrize("title", ["ray::RuntimeEnvAgent", "ray::DashboardAgent"])
@pytest.mark.parametrize("is_of_node", [True, False])
def test_an_agent_of_the_node_is_killed_if_a_signal_has_stopped_it(start, tmp_path, title, is_of_node):
    """Its title has taken the place of its environment, and with it of its mark."""
    agent, worker = start(title, code=SLEEPER, mark=""), start("ray::ToolLoopWorker")
    for process in (agent, worker):
        process.send_signal(signal.SIGSTOP)
    node = RayNode({os.getpid() if is_of_node else worker.pid: "raylet"}, RunFolder(tmp_path))

    with still_processes_killed(JOB, MARK, can_retry=True, node=node):
        assert eventually(lambda: worker.poll() is not None and is_of_node == (agent.poll() is not None), seconds=60)


def test_a_process_in_a_debugger_is_not_taken_for_one_that_stands_still(start):
    process = start("ray::ToolLoopWorker")
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.ptrace(PTRACE_ATTACH, process.pid, 0, 0) == 0, os.strerror(ctypes.get_errno())
    os.waitpid(process.pid, os.WUNTRACED)

    assert runs_of_threads(process.pid) == {}


def test_where_the_kernel_does_not_count_how_often_a_thread_runs_no_process_is_to_blame(start, monkeypatch):
    """As in gVisor, whose /proc/PID/status has fewer lines."""
    process = start("ray::ToolLoopWorker", code=SLEEPER)
    assert eventually(lambda: runs_of_threads(process.pid), seconds=60)

    monkeypatch.setattr(activity, "_SWITCHES", re.compile("a line that no kernel writes"))

    assert runs_of_threads(process.pid) == {}


def test_of_a_process_that_runs_one_thread_is_looked_at(start, monkeypatch):
    process, whole, stillness = start("ray::ToolLoopWorker"), [], activity.Stillness()
    monkeypatch.setattr(activity, "runs_of_threads", lambda pid: whole.append(pid) or runs_of_threads(pid))
    looks = []
    for _ in range(20):
        looks.append(stillness.look(process.pid))
        time.sleep(2 * activity.PULSE_SECONDS)

    process.send_signal(signal.SIGSTOP)

    assert eventually(lambda: stillness.look(process.pid) >= 2, seconds=60)
    assert max(looks) <= 1
    assert len(whole) < 15


def test_a_worker_that_goes_on_in_time_is_kept(start, monkeypatch):
    looks: list[int] = []
    look = activity.Stillness.look
    worker = start("ray::ToolLoopWorker")
    worker.send_signal(signal.SIGSTOP)

    def seen(stillness: activity.Stillness, pid: int) -> int:
        looks.append(pid)
        if len(looks) == 1:
            worker.send_signal(signal.SIGCONT)
        return look(stillness, pid)

    monkeypatch.setattr(activity.Stillness, "look", seen)
    with still_processes_killed(JOB, MARK, can_retry=True):
        assert eventually(lambda: len(looks) > 10, seconds=60)

    assert worker.poll() is None


def test_all_workers_whose_trajectories_others_carry_on_are_known_by_their_titles():
    for module in pkgutil.walk_packages(turnmill.rollout.__path__, "turnmill.rollout."):
        if module.name.endswith("worker"):
            importlib.import_module(module.name)
    # Other tests may have made classes of their own, and Ray's decorator has.
    workers = [
        worker
        for worker in TrajectoryWorker.__subclasses__()
        if worker.__module__.startswith("turnmill.") and not worker.__name__.startswith("ActorClass")
    ]
    titles = {f"ray::{worker.__name__}".encode() for worker in workers}

    assert {title for title in titles if not still_processes._LOOP_WORKER.match(title)} == set()


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGSTOP])
def test_an_attempt_ends_if_the_node_or_the_controller_of_ray_ends_or_is_stopped(start, tmp_path, by):
    folder, controller, node = RunFolder(tmp_path), start("gcs_server"), start("raylet")
    both = RayNode({controller.pid: "gcs_server", node.pid: "raylet"}, folder)

    with still_processes_killed(JOB, MARK, can_retry=True, node=both):
        time.sleep(3 * still_processes.LOOK_SECONDS)
        assert folder.read_failure() is None
        controller.send_signal(by)
        failure = eventually(folder.read_failure, seconds=60)

    assert failure.cause == "ray_died"
    assert "gcs_server" in str(failure)
    assert controller.poll() == -signal.SIGKILL
    assert node.poll() is None


def test_a_stopped_controller_of_ray_may_go_on_where_no_attempt_would_follow(start, tmp_path, monkeypatch):
    monkeypatch.setattr(still_processes, "STILL_LOOKS", 1)
    folder, controller, worker = RunFolder(tmp_path), start("gcs_server"), start("ray::ToolLoopWorker")
    for process in (controller, worker):
        process.send_signal(signal.SIGSTOP)

    with still_processes_killed(JOB, MARK, can_retry=False, node=RayNode({controller.pid: "gcs_server"}, folder)):
        assert eventually(lambda: worker.poll() is not None, seconds=60)

    assert controller.poll() is None
    assert folder.read_failure() is None
