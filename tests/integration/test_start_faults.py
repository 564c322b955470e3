"""Starts of a run in which a process is killed or stopped, at a random moment and drawn among all that there are."""

import random
import signal
import time
from pathlib import Path

import pytest

from support.run_faults import COUNTING_JOB, require_each_turn_once
from support.training_runs import TrainingRun
from turnmill.runs import processes

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(3600)]

NUM_STARTS = 10
START_SECONDS = 12.0
"""A start takes no longer on two cores that do nothing else; later, the fault comes in the step after it."""

GOES_ON_SECONDS = 300.0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
def test_a_run_goes_on_when_a_process_of_it_is_killed_or_stopped_in_a_start(tmp_path: Path, number: signal.Signals):
    job, chance = tmp_path / "job.yaml", random.Random(f"starts/{number.name}")
    job.write_text(COUNTING_JOB.format(steps=1000).replace("spec:", "spec:\n  retries: 100"))
    with TrainingRun(job, tmp_path / "run", {"CALLS_FILE": str(tmp_path / "calls")}) as run:
        attempt = run.start()
        for _ in range(NUM_STARTS):
            attempt.wait_for(lambda: len(run.processes("raylet")) > 0)
            time.sleep(chance.uniform(0.0, START_SECONDS))
            steps = len(run.metrics)
            print(f"{number.name} of {hurt_one(run, number, chance)} after step {steps}", flush=True)
            attempt.wait_for(lambda steps=steps: len(run.metrics) > steps, seconds=GOES_ON_SECONDS)
            starts = num_starts(run)
            for pid in run.processes("ray::TurnTaskRunner"):
                processes.send_signal(pid, signal.SIGKILL)
            attempt.wait_for(lambda starts=starts: num_starts(run) > starts, seconds=GOES_ON_SECONDS)
        attempt.process.send_signal(signal.SIGINT)
        attempt.wait(60, code=130)
        assert run.processes() == []
    require_each_turn_once(run, steps=len(run.metrics))


def num_starts(run: TrainingRun) -> int:
    return run.output.read_text(errors="replace").splitlines().count("starting")


def hurt_one(run: TrainingRun, number: signal.Signals, chance: random.Random) -> str:
    """Send the signal to one of the run's processes, and return its command line."""
    pid = chance.choice(sorted(run.processes()))
    name = processes.title(pid).replace(b"\0", b" ").decode(errors="replace").strip()
    processes.send_signal(pid, number)
    return name[:120]
