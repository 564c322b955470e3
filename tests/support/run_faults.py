"""Faults of the processes of a run, and what a run must look like after any of them."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from support.training_runs import Attempt, TrainingRun
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog

TURNS = 4
CALLS_IN_MID_STEP = 20
COUNTING_JOB = f"""
apiVersion: turnmill.dev/v1alpha1
kind: AgentTrainingJob
metadata: {{{{name: counting}}}}
spec:
  model: {{{{warmStart: {{{{turns: 600, gradientSteps: 60, maxLoss: 10}}}}}}}}
  agent:
    {{{{type: tool, toolType: "support.tool_server:SlowCounter", stopTokens: ["</python>"], groupSize: 4,
      minTurns: {TURNS}, maxTurns: {TURNS}, maxPromptLength: 32, maxResponseLength: 112, maxActionLength: 8,
      maxObsLength: 8, toolCallMaxRetries: 20}}}}
  environment: {{{{name: "support.tasks:CoinFlips"}}}}
  algorithm: {{{{type: grpo, minibatchTasks: 2}}}}
  training: {{{{steps: {{steps}}, tasksPerStep: 4, checkpointEvery: 1, validation: {{{{episodes: 0}}}}}}}}
  resources: {{{{device: cpu}}}}
"""
"""A job whose tool returns how often it was called in the trajectory: `format` with its number of steps."""

KINDS = {
    "fork server": r"fork_server\.server",
    "tool server": r"tool-server",
    "store": r"valkey-server|redis-server",
    "store's supervisor": r"store_supervisor\.py",
    "trainer": r"ray::TurnTaskRunner",
    "training worker": r"ray::WorkerDict",
    "agent loops": r"ray::\w*LoopWorker",
    "engine": r"ray::\w*(EngineServer|vLLM\w*Server)|EngineCore",
    "queue": r"ray::(TransferQueue\w*|SimpleStorage\w*)",
    "raylet": r"/raylet/raylet",
    "GCS": r"gcs_server",
}
"""Processes of a run by what they are, each with a pattern of its command line."""


def find(run: TrainingRun, pattern: str) -> list[int]:
    """Return the processes of the running attempt with such a command line. There must be one."""
    lines = {}
    for pid in run.processes():
        with suppress(OSError):
            lines[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    found = [pid for pid, line in lines.items() if re.search(pattern, line)]
    assert found, f"no process of the run matches {pattern!r}; there are " + "\n".join(sorted(lines.values()))
    return found


@contextmanager
def standing_still(run: TrainingRun, pattern: str) -> Iterator[None]:
    """Stop processes within a `with` block."""
    stopped = find(run, pattern)
    _signal(stopped, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(stopped, signal.SIGCONT)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def wait_until_in_mid_step(run: TrainingRun, attempt: Attempt, step: int) -> None:
    """Wait until some calls of this step's trajectories have been made, but not all."""
    calls_file = Path(run.environment["CALLS_FILE"])

    def holds() -> bool:
        made = calls_file.read_text().splitlines() if calls_file.exists() else []
        return sum(f"-t{step}-" in trajectory for trajectory in made) >= CALLS_IN_MID_STEP

    attempt.wait_for(holds)


def require_each_turn_once(run: TrainingRun, steps: int) -> None:
    """Each of the first steps was trained once, no trajectory failed, and every call took effect once and was seen."""
    assert [row["step"] for row in run.metrics][:steps] == list(range(1, steps + 1))
    episodes = TrajectoryLog(RunFolder(run.folder)).read_episodes()
    played = [episode for episode in episodes if episode.turns[0].step <= steps]
    assert len(played) == 16 * steps
    assert not [episode.failed_cause for episode in played if episode.failed_cause]
    for episode in played:
        assert [turn.observation for turn in episode.turns[:-1]] == [str(turn + 1) for turn in range(TURNS)]
