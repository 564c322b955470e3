"""Whole runs of agents with tools, as a user starts them."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from turnmill.training import processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

JOB = """
apiVersion: turnmill.dev/v1alpha1
kind: AgentTrainingJob
metadata: {name: small-tools}
spec:
  # A clone of a few seconds: it is here to take part in a run, not to solve anything.
  model: {warmStart: {turns: 600, gradientSteps: 60, maxLoss: 10}}
  agent:
    {type: tool, stopTokens: ["</python>"], groupSize: 4, minTurns: 1, maxPromptLength: 32, maxResponseLength: 64,
     maxActionLength: 16, maxObsLength: 16, toolCallMaxRetries: 20}
  environment: {name: arithmetic}
  algorithm: {type: grpo, kl: {coefficient: 0.01}, minibatchTasks: 2}
  training: {steps: 3, tasksPerStep: 4, checkpointEvery: 1, validation: {episodes: 8}}
  resources: {device: cpu}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def command(job: Path, run_dir: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "turnmill.cli.main", "run", str(job), "--output", str(run_dir), *arguments]


def rows(run_dir: Path) -> list[dict[str, float]]:
    path = run_dir / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def tool_servers(run_dir: Path) -> list[int]:
    """The tool server that the run has started, by its process."""
    mark = json.loads((run_dir / "attempt.json").read_text())["mark"]
    found = []
    for pid in processes.find_marked(mark):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"tool-server" in words:
            found.append(pid)
    return found


def wait_for(fact: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not fact():
        assert process.poll() is None, "the run ended before it got there"
        assert time.monotonic() < deadline, "the run did not get there"
        time.sleep(0.05)


def test_a_run_goes_on_when_its_tool_server_is_killed_and_leaves_nothing_behind(job, tmp_path):
    run_dir = tmp_path / "run"
    process = subprocess.Popen(
        command(job, run_dir), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    wait_for(lambda: any(row["step"] >= 1 for row in rows(run_dir)), process)
    mark = json.loads((run_dir / "attempt.json").read_text())["mark"]
    for pid in tool_servers(run_dir):
        processes._signal(pid, signal.SIGKILL)

    output, _ = process.communicate(timeout=600)

    assert process.returncode == 0, output
    steps = {int(row["step"]): row for row in rows(run_dir)}
    assert max(steps) == 3
    assert steps[3]["turnmill/trajectories"] == 16
    assert steps[3]["turnmill/tool/num_tool_calls/min"] == 1
    # What is trained is what was sampled.
    assert all(row.get("training/rollout_probs_diff_mean", 0) < 1e-4 for row in steps.values())
    assert processes.find_marked(mark) == []


def test_too_many_failures_end_a_run_with_the_reason(job, tmp_path):
    run_dir = tmp_path / "run"

    done = subprocess.run(
        [*command(job, run_dir), "--set", "agent.toolServerUrl=http://127.0.0.1:9", "--set", "agent.toolCallTimeout=1"],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip

    assert done.returncode == 1
    assert "failed_ratio" in done.stdout + done.stderr
    assert "tool_connection: 8" in done.stdout + done.stderr
