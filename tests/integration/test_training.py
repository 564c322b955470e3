"""Whole runs with the real verl, Ray and vLLM, as a user starts them."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

JOB = """
apiVersion: turnmill.dev/v1alpha1
kind: AgentTrainingJob
metadata: {name: small}
spec:
  # A clone of a few seconds: it is here to take part in a run, not to solve anything.
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


def command(job: Path, run_dir: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "turnmill.cli.main", "run", str(job), "--output", str(run_dir), *arguments]


def train(job: Path, run_dir: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(job, run_dir, *arguments), capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def rows(run_dir: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def first_step(run_dir: Path) -> list[tuple[object, ...]]:
    turns = [json.loads(line) for line in (run_dir / "trajectories" / "step-000001.jsonl").read_text().splitlines()]
    return sorted((turn["environment"], turn["episode"], turn["turn"], tuple(turn["response_ids"])) for turn in turns)


def wait_for(fact: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not fact():
        assert process.poll() is None, "the run ended before it got there"
        assert time.monotonic() < deadline, "the run did not get there"
        time.sleep(0.05)


def marked_processes(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"TURNMILL_ATTEMPT={mark}".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found


def mark_of(run_dir: Path) -> str:
    return str(json.loads((run_dir / "attempt.json").read_text())["mark"])


def test_a_run_trains_leaves_its_folder_and_repeats_itself_under_one_seed(job, tmp_path):
    train(job, tmp_path / "first")
    train(job, tmp_path / "second", "--set", "training.steps=1")

    first = rows(tmp_path / "first")
    assert [row["step"] for row in first] == [0, 1, 2, 3]
    assert all(row["training/rollout_probs_diff_mean"] <= 1e-4 for row in first[1:])
    summary = json.loads((tmp_path / "first" / "summary.json").read_text())
    assert 0 <= summary["success_first"] <= 1
    assert 0 <= summary["success_final"] <= 1
    assert (tmp_path / "first" / "curve.png").stat().st_size > 0
    assert first_step(tmp_path / "first") == first_step(tmp_path / "second")
    assert not (tmp_path / "first" / "attempt.json").exists()


def test_a_killed_run_carries_on_and_trains_no_step_twice(job, tmp_path):
    run_dir = tmp_path / "run"
    process = subprocess.Popen(command(job, run_dir), text=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: (run_dir / "checkpoints" / "global_step_1" / "complete.json").exists(), process)
    mark = mark_of(run_dir)
    process.kill()
    process.wait()

    train(job, run_dir, "--resume")

    assert [row["step"] for row in rows(run_dir)] == [0, 1, 2, 3]
    assert marked_processes(mark) == []


def test_ctrl_c_ends_a_run_and_leaves_nothing_behind(job, tmp_path):
    run_dir = tmp_path / "run"
    shared_memory = set(Path("/dev/shm").iterdir())
    process = subprocess.Popen(command(job, run_dir), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wait_for(lambda: (run_dir / "trajectories" / "validation-000000.jsonl").exists(), process)
    mark = mark_of(run_dir)

    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)

    assert process.returncode == 130, output
    assert marked_processes(mark) == []
    assert set(Path("/dev/shm").iterdir()) <= shared_memory
    assert not (run_dir / "attempt.json").exists()


def test_colocate_async_trains_to_the_last_step(job, tmp_path):
    train(job, tmp_path / "run", "--set", "training.mode=colocate_async")

    assert [row["step"] for row in rows(tmp_path / "run")] == [0, 1, 2, 3]


def test_adapters_train_and_reach_the_engine(job, tmp_path):
    train(job, tmp_path / "run", "--set", "model.lora={rank: 4, alpha: 8}")

    steps = rows(tmp_path / "run")[1:]
    assert [row["step"] for row in steps] == [1, 2, 3]
    assert all(row["actor/grad_norm"] > 0 for row in steps)
    assert all(row["training/rollout_probs_diff_mean"] <= 1e-4 for row in steps)
