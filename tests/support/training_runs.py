"""Runs started by `turnmill run` as real processes, which tests watch and kill."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from support.server_process import kill_now
from turnmill.observability.run_folder import RunFolder
from turnmill.runs import processes
from turnmill.runs.fork_server.launcher import INTERPRETER

DIAGNOSTICS = {
    "actor/entropy",
    "actor/grad_norm",
    "actor/lr",
    "actor/pg_clipfrac",
    "actor/ppo_kl",
    "critic/advantages/std",
    "rollout_corr/kl",
    "rollout_corr/k3_kl",
    "turnmill/truncated_ratio",
}
"""Metrics of every step of every agent kind that help to find why a policy does not learn."""

LOGS = {".err", ".out", ".log"}
FAILURE = re.compile(r"Traceback|ERROR|[Ff]atal|Segmentation|ended with -")

TOOL_JOB = """
apiVersion: turnmill.dev/v1alpha1
kind: AgentTrainingJob
metadata: {name: small-tools}
spec:
  # Made in a few seconds: the run needs a policy, not a good one.
  model: {warmStart: {turns: 600, gradientSteps: 60, maxLoss: 10}}
  agent:
    {type: tool, stopTokens: ["</python>"], groupSize: 4, minTurns: 1, maxPromptLength: 32, maxResponseLength: 64,
     maxActionLength: 16, maxObsLength: 16, toolCallMaxRetries: 20}
  environment: {name: "support.tasks:CoinFlips"}
  algorithm: {type: grpo, kl: {coefficient: 0.01}, minibatchTasks: 2}
  training: {steps: 3, tasksPerStep: 4, checkpointEvery: 1, validation: {episodes: 8}}
  resources: {device: cpu}
"""
"""A job of about a minute whose agent calls a tool."""


def _unchanged(*command: str) -> list[str]:
    return [*command]


@dataclass(frozen=True)
class TrainingRun:
    """A job and its run folder; each start is an attempt. `with` kills the attempts that still run."""

    job: Path
    folder: Path
    environment: dict[str, str] = field(default_factory=dict)
    wrap: Callable[..., list[str]] = _unchanged
    """Returns the command that runs another one, such as `SlowDisk.command`."""

    attempts: list["Attempt"] = field(default_factory=list)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for attempt in self.attempts:
            attempt.kill()

    def start(self, *arguments: str) -> "Attempt":
        """Start `turnmill run`, with its output in FOLDER.out."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "turnmill.cli.main", "run", str(self.job), "--output", str(self.folder)]
        with self.output.open("ab") as output:
            process = subprocess.Popen(
                self.wrap(*command, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._variables(),
                start_new_session=True,
            )
        self.attempts.append(Attempt(self, process))
        return self.attempts[-1]

    def _variables(self) -> dict[str, str]:
        variables = os.environ | {"OMP_NUM_THREADS": "1"} | self.environment
        if self.wrap is not _unchanged:
            # A fork of a process of the tests would not be in the namespaces in which `wrap` runs the command.
            variables.pop(INTERPRETER, None)
        return variables

    def train(self, *arguments: str, seconds: float = 900) -> None:
        """Start an attempt and wait until it succeeds."""
        self.start(*arguments).wait(seconds)

    @property
    def output(self) -> Path:
        """The file with the output of all attempts."""
        return Path(f"{self.folder}.out")

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of the steps so far, in the order in which they were written."""
        return list(RunFolder(self.folder).read_metrics())

    def checkpoints(self) -> list[int]:
        """Return the steps with a complete checkpoint."""
        complete = self.folder.glob("checkpoints/global_step_*/complete.json")
        return sorted(int(path.parent.name.rpartition("_")[2]) for path in complete)

    def mark(self) -> str:
        """Return the mark of the processes of the running attempt; empty if none runs."""
        return str(self._record().get("mark", ""))

    def folders(self) -> list[Path]:
        """Return the temporary folders of the running attempt, outside the run folder."""
        return [Path(folder) for folder in self._record().get("folders", ())]

    def processes(self, word: str = "") -> list[int]:
        """Return the processes of the running attempt with this word in their command line."""
        mark = self.mark()
        return [pid for pid in processes.find_marked(mark) if word in _command_line(pid)] if mark else []

    def _record(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.folder / "attempt.json").read_text()))
        except (OSError, ValueError):
            return {}


@dataclass(frozen=True)
class Attempt:
    """One start of a run."""

    run: TrainingRun
    process: subprocess.Popen[bytes]

    def wait_for(self, condition: Callable[[], Any], seconds: float = 600) -> None:
        """Wait until a condition holds; the run must not end before."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"the run ended before the condition held:\n{self._output_tail()}"
            assert time.monotonic() < deadline, f"the condition did not hold in time:\n{self._output_tail()}"
            time.sleep(0.02)

    def wait(self, seconds: float = 900, *, code: int = 0) -> None:
        """Wait until the attempt has ended with this exit code."""
        try:
            ended = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        assert ended == code, f"exit code {ended} instead of {code}:\n{self._output_tail()}"

    def kill(self) -> None:
        """Kill every process of the run at once, as when a machine fails."""
        mark = self.run.mark()
        self.process.kill()
        self.process.wait()
        while mark and (left := processes.find_marked(mark)):
            kill_now(left)
            time.sleep(0.02)

    def kill_processes(self, word: str) -> Sequence[int]:
        """Kill the processes of the run with this word in their command line; there must be at least one."""
        found = self.run.processes(word)
        assert found, f"no process of the run has {word!r} in its command line"
        kill_now(found)
        return found

    def _output_tail(self) -> str:
        logs = [_excerpt(path) for path in sorted(self.run.folder.glob("logs/**/*")) if path.suffix in LOGS]
        return "\n".join([self.run.output.read_text(errors="replace")[-5000:], *filter(None, logs)])


def _excerpt(log: Path) -> str:
    """Return the end of a log if it tells of a failure, else an empty string."""
    lines = log.read_text(errors="replace").splitlines()
    telling = [number for number, line in enumerate(lines) if FAILURE.search(line)]
    # What follows the last line of a traceback names the cause; the first ones say where.
    if not telling:
        return ""
    begin = max(telling[0] - 5, 0)
    end = begin + 40
    return "\n".join([f"-- {log.name}:", *lines[begin:end], *lines[end:][-15:]])


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
