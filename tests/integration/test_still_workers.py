"""Agent loop workers that stand still are killed, and no others."""

import importlib
import os
import pkgutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

import turnmill.rollout
from support.jobs import job, tool_job
from support.server_process import eventually
from turnmill.core import activity
from turnmill.core.process_mark import PROCESS_MARK
from turnmill.jobs import parse_job
from turnmill.rollout.trajectory_worker import TrajectoryWorker
from turnmill.runs import still_workers
from turnmill.runs.still_workers import still_workers_killed

JOB = parse_job(tool_job())
MARK, OTHER_MARK = "a" * 32, "b" * 32

# As in a worker of Ray's, threads of its own run while the main thread waits.
WORKER = """
import threading
from turnmill.core.activity import show_activity
show_activity()
print("up", flush=True)
threading.Event().wait(600)
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
def test_of_all_processes_only_a_worker_that_stands_still_is_killed(start, monkeypatch, title):
    monkeypatch.setattr(still_workers, "LOOK_SECONDS", 0.5)
    still, working = start(title), start("ray::ToolLoopWorker")
    others = [start("ray::RewardLoopWorker"), start("ray::EngineServer"), start("ray::ToolLoopWorker", mark=OTHER_MARK)]
    for process in (still, *others):
        process.send_signal(signal.SIGSTOP)

    with still_workers_killed(JOB, MARK):
        assert eventually(lambda: still.poll() is not None, seconds=60)

    assert still.returncode == -signal.SIGKILL
    assert [process.poll() for process in (*others, working)] == [None] * 4


def test_workers_whose_trajectories_no_other_can_resume_are_kept(monkeypatch):
    monkeypatch.setattr(still_workers, "_watch", lambda *_: pytest.fail("nothing is to be watched"))

    with still_workers_killed(parse_job(job()), MARK):
        assert not [thread for thread in threading.enumerate() if thread.name == "still-workers"]


def test_a_worker_that_goes_on_in_time_is_kept(start, monkeypatch):
    monkeypatch.setattr(still_workers, "LOOK_SECONDS", 0.5)
    looks: list[int] = []
    look = activity.activity
    worker = start("ray::ToolLoopWorker")
    worker.send_signal(signal.SIGSTOP)

    def seen(pid: int) -> str:
        looks.append(pid)
        if len(looks) == 3:
            worker.send_signal(signal.SIGCONT)
        return look(pid)

    monkeypatch.setattr(activity, "activity", seen)
    with still_workers_killed(JOB, MARK):
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

    # That of verlog's episodes has no store to carry them on from.
    assert {title for title in titles if not still_workers._TITLE.match(title)} == {b"ray::EpisodeLoopWorker"}
