"""Whole runs with the real verl, Ray and vLLM, as a user starts them."""

import json
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.training_runs import DIAGNOSTICS, TrainingRun
from turnmill.cli.live import read_live
from turnmill.core.errors import SettingsError, StoreUnavailableError
from turnmill.observability.advantage_log import AdvantageLog
from turnmill.runs import processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

JOB = """
apiVersion: turnmill.dev/v1alpha1
kind: AgentTrainingJob
metadata: {name: small}
spec:
  # A warm start of a few seconds: enough for a run, not for solving the task.
  model: {warmStart: {turns: 600, gradientSteps: 40, maxLoss: 10}}
  agent: {maxTurns: 6, prompt: compact, maxPromptTokens: 160, maxResponseTokens: 20}
  environment: {name: babyai, task: GoToObj, count: 4}
  algorithm: {minibatchTurns: 8, criticWarmup: {batches: 1, steps: 1}, kl: {coefficient: 0.01}}
  training: {steps: 3, turnsPerStep: 16, checkpointEvery: 1, validation: {episodes: 8}}
  resources: {device: cpu}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


@pytest.fixture
def temporary() -> Iterator[Path]:
    """The run's folder for temporary files, with a short path: the paths of sockets have at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def run(job: Path, tmp_path: Path, temporary: Path) -> Iterator[TrainingRun]:
    with TrainingRun(job, tmp_path / "run", {"TMPDIR": str(temporary)}) as run:
        yield run


def left_in(temporary: Path) -> list[str]:
    """Return what is left in a folder, except torch's cache of compiled code."""
    return [path.name for path in temporary.iterdir() if not path.name.startswith("torchinductor_")]


def lines(run: TrainingRun, kind_and_step: str) -> list[dict[str, Any]]:
    files = sorted((run.folder / "trajectories").glob(f"{kind_and_step}.*"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def turns_of(run: TrainingRun, step: int) -> list[tuple[object, ...]]:
    turns = lines(run, f"step-{step:06d}")
    return sorted((turn["environment"], turn["episode"], turn["turn"], tuple(turn["response_ids"])) for turn in turns)


def turns_in_flight(run: TrainingRun, step: int) -> int:
    """Return the number of turns that have been played of a step's environments which have others left."""
    try:
        found = read_live(run.folder)
    except (SettingsError, StoreUnavailableError):
        return 0
    return sum(len(trajectory.turns) for trajectory in found if trajectory.name.startswith(f"t{step}-"))


@pytest.mark.nightly
def test_a_run_trains_writes_its_run_folder_and_is_reproducible_from_its_seed(run, job, tmp_path, temporary):
    run.train()
    assert left_in(temporary) == []
    with TrainingRun(job, tmp_path / "second") as second:
        second.train()

    assert [row["step"] for row in run.metrics] == [0, 1, 2, 3]
    assert all(row["training/rollout_probs_diff_mean"] <= 1e-4 for row in run.metrics[1:])
    assert all(
        {*DIAGNOSTICS, "critic/vf_explained_var", "turnmill/kl_reference"} <= row.keys() for row in run.metrics[1:]
    )
    assert all(row["rollout_corr/k3_kl"] < 1e-6 for row in run.metrics[1:])
    summary = json.loads((run.folder / "summary.json").read_text())
    assert 0 <= summary["success_first"] <= 1
    assert 0 <= summary["success_final"] <= 1
    assert (run.folder / "curve.png").stat().st_size > 0
    for step in (1, 2, 3):
        assert turns_of(run, step) == turns_of(second, step)
        measured = ("critic/vf_loss", "critic/grad_norm", "actor/pg_loss", "actor/grad_norm")
        assert [run.metrics[step][name] for name in measured] == [second.metrics[step][name] for name in measured]
    advantages = AdvantageLog(run.folder / "trajectories").read_tokens(1)
    lengths = {(turn["episode"], turn["turn"]): len(turn["response_ids"]) for turn in lines(run, "step-000001")}
    assert {(episode, turn): len(values) for episode, turn, values in advantages} == lengths
    assert (run.folder / "vocabulary.json").exists()
    assert "no forking" not in (run.folder / "logs" / "fork_server.log").read_text()
    assert run.mark() == ""


def test_a_killed_run_resumes_and_trains_no_step_twice(run):
    attempt = run.start()
    attempt.wait_for(lambda: 1 in run.checkpoints())
    mark = run.mark()
    attempt.process.kill()
    attempt.process.wait()

    run.train("--resume")

    assert [row["step"] for row in run.metrics] == [0, 1, 2, 3]
    assert processes.find_marked(mark) == []


def test_a_retried_run_resumes_its_turns_and_a_dead_agent_loop_worker_is_replaced_without_a_retry(run, job, tmp_path):
    long_steps = ("--set", "training.turnsPerStep=128")
    attempt = run.start(*long_steps, "--set", "retries=1")

    def in_mid_step(step: int) -> bool:
        return 16 <= turns_in_flight(run, step) < 64

    attempt.wait_for(lambda: in_mid_step(2))
    attempt.kill_processes("TurnTaskRunner")
    killed_at = time.time()
    attempt.wait_for(lambda: in_mid_step(3))
    # No retry is left.
    attempt.kill_processes("LoopWorker")
    attempt.wait()
    with TrainingRun(job, tmp_path / "undisturbed") as undisturbed:
        undisturbed.train(*long_steps)

    assert [row["step"] for row in run.metrics] == [0, 1, 2, 3]
    asked = [turn["asked_at"] for turn in lines(run, "step-000002")]
    assert sum(at < killed_at for at in asked) >= 16
    for step in (1, 2, 3):
        assert turns_of(run, step) == turns_of(undisturbed, step)
        measured = ("critic/vf_loss", "critic/grad_norm", "actor/pg_loss", "actor/grad_norm")
        assert [run.metrics[step][name] for name in measured] == [undisturbed.metrics[step][name] for name in measured]


def test_ctrl_c_ends_a_run_and_leaves_no_processes_or_temporary_files(run, temporary):
    shared_memory = processes.unused_shared_memory()
    attempt = run.start()
    attempt.wait_for(lambda: any((run.folder / "trajectories").glob("validation-000000.*")))
    mark = run.mark()

    attempt.process.send_signal(signal.SIGINT)

    attempt.wait(60, code=130)
    assert processes.find_marked(mark) == []
    assert processes.unused_shared_memory() <= shared_memory
    assert left_in(temporary) == []
    assert run.mark() == ""


@pytest.mark.nightly
def test_a_colocate_async_run_and_another_run_train_concurrently_with_separate_weights(run, job, tmp_path):
    # A learning rate so high that the policies of the two runs disagree about every token.
    fast = ("--set", "algorithm.actorLearningRate=5e-3")
    with TrainingRun(job, tmp_path / "other") as other:
        attempts = [
            run.start("--set", "training.mode=colocate_async"),
            other.start("--set", "training.seed=1", *fast),
        ]
        for attempt in attempts:
            attempt.wait()

    for each in (run, other):
        assert [row["step"] for row in each.metrics] == [0, 1, 2, 3]
    assert all(row["training/rollout_probs_diff_mean"] <= 1e-4 for row in other.metrics[1:])


@pytest.mark.nightly
def test_lora_adapters_train_and_reach_the_engine(run):
    run.train("--set", "model.lora={rank: 4, alpha: 8}")

    steps = run.metrics[1:]
    assert [row["step"] for row in steps] == [1, 2, 3]
    assert all(row["actor/grad_norm"] > 0 for row in steps)
    assert all(row["training/rollout_probs_diff_mean"] <= 1e-4 for row in steps)


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["colocate_async", "separate_async"])
def test_lora_adapters_reach_the_engines_of_asynchronous_rollout(run, mode):
    # A learning rate so high that a policy and the next one disagree about every token.
    settings = [f"training.mode={mode}", "algorithm.actorLearningRate=5e-3", "model.lora={rank: 4, alpha: 8}"]
    settings += ["resources.rollout.replicas=1"] if mode == "separate_async" else []
    arguments = [argument for setting in settings for argument in ("--set", setting)]

    run.train(*arguments)
    # The first step after a restart has rows of the newest policy alone.
    run.train(*arguments, "--resume", "--set", "training.steps=4")

    steps = run.metrics[1:]
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    assert all(row["actor/grad_norm"] > 0 for row in steps)
    assert {turn["policy_version"] for turn in lines(run, "step-000004")} == {3}
    assert steps[3]["training/rollout_probs_diff_max"] <= 1e-4
