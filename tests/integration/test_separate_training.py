"""Whole runs with separate devices for rollout."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster

from support.server_process import eventually, kill_now
from support.training_runs import TrainingRun
from turnmill.jobs import load_job
from turnmill.observability.run_folder import RunFolder
from turnmill.runs import processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

JOB = """
apiVersion: turnmill.dev/v1alpha1
kind: AgentTrainingJob
metadata: {name: apart}
spec:
  # A warm start of a few seconds: enough for a run, not for solving the task.
  model: {warmStart: {turns: 600, gradientSteps: 40, maxLoss: 10}}
  agent: {maxTurns: 6, prompt: compact, maxPromptTokens: 160, maxResponseTokens: 20}
  environment: {name: babyai, task: GoToObj, count: 4}
  # A learning rate so high that a policy and the next one disagree about every token.
  algorithm: {minibatchTurns: 8, actorLearningRate: 5e-3, criticWarmup: {batches: 1, steps: 1}}
  training: {mode: separate_async, steps: 3, turnsPerStep: 16, checkpointEvery: 1, validation: {episodes: 4}}
  resources:
    device: cpu
    train: {accelerator: H100}
    rollout: {accelerator: A40, replicas: 2}
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[TrainingRun]:
    job = tmp_path / "job.yaml"
    job.write_text(JOB)
    with TrainingRun(job, tmp_path / "run") as run:
        yield run


def turns(run_dir: Path, step: int) -> list[dict[str, Any]]:
    """Return the turns that a step learned from."""
    files = sorted((run_dir / "trajectories").glob(f"step-{step:06d}.*"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def versions(run_dir: Path, step: int) -> set[int]:
    """Return the versions of the policies that generated a step's turns."""
    return {turn["policy_version"] for turn in turns(run_dir, step)}


def test_a_run_with_async_rollout_reaches_its_last_step_and_can_be_resumed(run):
    shared_memory = processes.unused_shared_memory()

    run.train()
    run.train("--resume", "--set", "training.steps=4")

    rows = run.metrics
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    # Rollout for step 2 was requested with that for step 1, and for step 3 when step 2 began.
    assert versions(run.folder, 1) == {0}
    assert versions(run.folder, 2) <= {0, 1}
    assert versions(run.folder, 3) <= {1, 2}
    assert all(row["training/off_policy/trajectory_staleness_worst/max"] <= 1 for row in rows[1:])
    # The engines of the second attempt start with the first policy and receive the newest by weight sync.
    assert versions(run.folder, 4) == {3}
    assert rows[4]["turnmill/fresh_rows"] == 16
    assert rows[4]["training/rollout_probs_diff_max"] <= 1e-4
    assert rows[4]["rollout_corr/k3_kl"] < 1e-6
    # The rollout of the first attempt for step 4 was repeated, from the end of step 3.
    played = [turn for step in (1, 2, 3, 4) for turn in turns(run.folder, step) if turn["environment"] == 0]
    last = [turn["turn"] for turn in played if turn["episode"] == played[-1]["episode"]]
    assert last == list(range(len(last)))
    assert processes.unused_shared_memory() <= shared_memory
    assert run.mark() == ""


MACHINES = {
    "TurnTaskRunner": "head",
    "WorkerDict": "H100",
    # Ray lists turnmill's class under the name of the class that it extends.
    "AgentLoopWorkerTQ": "H100",
    "SimpleStorageUnit": "H100",
    "TransferQueueController": "head",
    "CheckpointEngineWorker": "A40",
    "EngineServer": "A40",
}


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A Ray cluster of a head and a machine for training."""
    cluster = Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 0, "num_gpus": 0})
    add_machine(cluster, "H100")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def rollout_machine(cluster: Any) -> Any:
    """The machine for rollout."""
    return add_machine(cluster, "A40")


def add_machine(cluster: Any, accelerator: str) -> Any:
    return cluster.add_node(num_cpus=8, num_gpus=1, resources={f"accelerator_type:{accelerator}": 1})


def machines() -> dict[str, str]:
    """Return the machine of each actor, by the name of its class."""
    names = {
        node["NodeID"]: next(
            (r.partition(":")[2] for r in node["Resources"] if r.startswith("accelerator_type:")), "head"
        )
        for node in ray.nodes()
    }
    alive = [actor for actor in ray._private.state.actors().values() if actor["State"] == "ALIVE"]
    return {actor["ActorClassName"].rpartition(".")[2]: names[actor["Address"]["NodeID"]] for actor in alive}


@pytest.mark.nightly
def test_training_and_rollout_use_the_machines_of_the_job_and_continue_when_one_is_replaced(
    cluster, rollout_machine, tmp_path
):
    overrides = ["resources.rollout.replicas=1", "training.steps=8"]
    folder = RunFolder(tmp_path / "run")
    seen: dict[str, str] = {}
    with joined(overrides, tmp_path / "run", cluster.address) as process:
        while process.poll() is None and folder.last_step().get("step", 0) < 2:
            seen |= machines()
            time.sleep(0.5)

        cluster.remove_node(rollout_machine)
        # Responses in progress and the following steps wait for an engine.
        time.sleep(5)
        add_machine(cluster, "A40")
        process.wait(400)

    assert process.returncode == 0, (tmp_path / "run.out").read_text()[-5000:]
    assert {name: seen.get(name) for name in MACHINES} == MACHINES
    rows = list(folder.read_metrics())
    assert [row["step"] for row in rows] == list(range(9))
    assert rows[-1]["turnmill/engines"] == 1
    # The engine that replaces the lost one has the current policy.
    assert versions(tmp_path / "run", 8) <= {6, 7}
    assert max(row.get("training/rollout_probs_diff_max", 0) for row in rows) <= 1e-4


@pytest.mark.nightly
def test_a_run_goes_on_when_the_core_processes_of_its_engines_are_killed(cluster, rollout_machine, tmp_path):
    add_machine(cluster, "A40")
    folder = RunFolder(tmp_path / "run")
    with joined(["training.steps=12"], tmp_path / "run", cluster.address) as process:
        eventually(lambda: process.poll() is not None or folder.last_step().get("step", 0) >= 2, 400)
        first, second = core_processes()
        kill_now([first])
        eventually(lambda: process.poll() is not None or folder.last_step().get("turnmill/engines") == 1, 300)
        # The run needs an engine that has replaced the first.
        kill_now([second])
        process.wait(400)

    assert process.returncode == 0, (tmp_path / "run.out").read_text()[-5000:]
    rows = list(folder.read_metrics())
    assert [row["step"] for row in rows] == list(range(13))
    assert versions(tmp_path / "run", 12) <= {10, 11}
    assert max(row.get("training/rollout_probs_diff_max", 0) for row in rows) <= 1e-4


@pytest.mark.nightly
def test_a_run_goes_on_when_an_engine_on_another_machine_is_stopped(cluster, rollout_machine, tmp_path):
    folder = RunFolder(tmp_path / "run")
    overrides = ["resources.rollout.replicas=1", "training.steps=8", "training.stallTimeoutSeconds=400"]
    with joined(overrides, tmp_path / "run", cluster.address) as process:
        eventually(lambda: process.poll() is not None or folder.last_step().get("step", 0) >= 2, 400)
        (engine,) = processes_named("ray::EngineServer")
        os.kill(engine, signal.SIGSTOP)
        process.wait(300)

    assert process.returncode == 0, (tmp_path / "run.out").read_text()[-5000:]
    assert [row["step"] for row in folder.read_metrics()] == list(range(9))


def core_processes() -> list[int]:
    """Return vLLM's core processes on the machines of this test."""
    return processes_named("EngineCore")


def processes_named(text: str) -> list[int]:
    """Return the processes on the machines of this test whose title has a text."""
    below = psutil.Process().children(recursive=True)
    return [process.pid for process in below if text in " ".join(process.cmdline())]


@pytest.mark.nightly
def test_the_error_for_a_missing_accelerator_lists_the_existing_ones(cluster, rollout_machine, tmp_path):
    # Long enough for the creation of the model, to which the same timeout applies.
    overrides = ["resources.rollout.accelerator=L40S", "training.stallTimeoutSeconds=90"]
    with joined(overrides, tmp_path / "run", cluster.address) as process:
        process.wait(300)

    output_text = " ".join((tmp_path / "run.out").read_text().split())
    assert process.returncode != 0
    assert "The run failed (resources): spec.resources.rollout asks for 2 machines with 1 GPU (L40S)" in output_text
    assert "1 x H100" in output_text
    assert "1 x A40" in output_text


@contextmanager
def joined(overrides: Sequence[str], run_dir: Path, address: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start `turnmill run --ray auto` as the operator does; its output goes to RUN_DIR.out."""
    file = run_dir.with_name("job.yaml")
    file.write_text(JOB)
    environment = {
        "TURNMILL_JOB": load_job(file, overrides).model_dump_json(by_alias=True),
        "TURNMILL_ATTEMPT": "1",
        "TURNMILL_RUN_DIR": str(run_dir),
        "TURNMILL_METRICS_PORT": "0",
        "RAY_ADDRESS": address,
    }
    command = [sys.executable, "-m", "turnmill.cli.main", "run", "--ray", "auto"]
    with Path(f"{run_dir}.out").open("wb") as output:
        process = subprocess.Popen(
            command, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()
