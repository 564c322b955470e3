"""`turnmill view` as a process, and runs for it to show."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from turnmill.observability.progress import Progress, write_progress
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog, TurnRecord

START_SECONDS = 60

TURN = TurnRecord(
    episode="t0-0", environment=0, turn=0, step=1, policy_version=0, prompt="A ball.", response="go", action="go",
    reward=1.0, response_ids=(0,), log_probs=(-0.5,), done=True, stop_reason="completed",
)  # fmt: skip


class ViewProcess:
    """`turnmill view`, behind a command that becomes it, such as one that mounts a folder."""

    def __init__(self, *arguments: str, cache: Path, behind: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [*behind, sys.executable, "-m", "turnmill.cli.main", "view", *arguments],
            env=os.environ | {"XDG_CACHE_HOME": str(cache), "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Tests that run in the background may ignore SIGINT, and child processes inherit that.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )

    def address(self) -> str:
        """Return the address of the page, once it answers."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert "http://" in line, self.process.communicate(timeout=10)
        return line.partition(": ")[2].split()[0]

    def stop(self) -> int:
        """Press Ctrl-C and return the exit code."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.communicate(timeout=20)
        finally:
            self.process.kill()
        return self.process.returncode


def new_run(path: Path, *, step: int, steps: int) -> RunFolder:
    """Write a run with a trajectory of one turn, `t0-0`, and return it."""
    made = RunFolder(path)
    made.path.parent.mkdir(parents=True, exist_ok=True)
    made.create()
    made.write_job("spec: {environment: {name: babyai, task: GoToObj}}\n")
    write_progress(made, Progress("training", step, steps, success=0.25, reward=step / 4))
    TrajectoryLog(made).append([TURN])
    return made
