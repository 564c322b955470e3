"""Runs of agents with tools through faults of their machine: processes that stand still, a slow disk, a full disk."""

import re
import signal
import time
from pathlib import Path

import pytest

from support.run_faults import COUNTING_JOB, KINDS, require_each_turn_once, standing_still, wait_until_in_mid_step
from support.slow_disk import slow_disk
from support.training_runs import TrainingRun
from turnmill.runs import processes

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(3600)]

STOPPED_SECONDS = 60.0
FAILED = re.compile(r"^The run failed \((\w+)\): ", re.MULTILINE)


def test_a_run_goes_on_or_fails_with_a_cause_when_any_of_its_processes_stands_still_for_a_minute(tmp_path: Path):
    job = tmp_path / "job.yaml"
    job.write_text(COUNTING_JOB.format(steps=1000))
    outcomes = {}
    with TrainingRun(job, tmp_path / "run", {"CALLS_FILE": str(tmp_path / "calls")}) as run:
        attempt = run.start()
        for name, pattern in KINDS.items():
            wait_until_in_mid_step(run, attempt, last_step(run) + 2)
            said = len(FAILED.findall(run.output.read_text()))
            with standing_still(run, pattern):
                time.sleep(STOPPED_SECONDS)
            trained = last_step(run)
            while attempt.process.poll() is None and last_step(run) < trained + 2:
                time.sleep(0.5)
            outcomes[name] = "goes on"
            if attempt.process.poll() is not None:
                causes = FAILED.findall(run.output.read_text())[said:]
                assert causes, run.output.read_text()[-3000:]
                outcomes[name] = causes[0]
                assert run.processes() == []
                attempt = run.start("--resume")
        attempt.process.send_signal(signal.SIGINT)
        attempt.wait(60, code=130)
    print(outcomes)
    require_each_turn_once(run, steps=last_step(run))


def last_step(run: TrainingRun) -> int:
    return max((row["step"] for row in run.metrics), default=0)


def test_a_run_on_a_slow_disk_that_becomes_full_says_so_and_resumes(tmp_path: Path):
    job, folder = tmp_path / "job.yaml", tmp_path / "run"
    job.write_text(COUNTING_JOB.format(steps=3))
    with (
        slow_disk(folder, 0.2) as disk,
        TrainingRun(job, folder, {"CALLS_FILE": str(tmp_path / "calls")}, wrap=disk.command) as run,
    ):
        attempt = run.start()
        wait_until_in_mid_step(run, attempt, 2)
        mark, kept = run.mark(), run.checkpoints()
        disk.is_full = True
        attempt.wait(code=1)
        assert processes.find_marked(mark) == []
        said = run.output.read_text()
        assert FAILED.findall(said)[0] in ("run_folder", "checkpoint"), said[-3000:]
        assert "No space left on device" in said
        assert set(kept[-1:]) <= set(run.checkpoints())
        assert disk.num_delayed > 20

        disk.is_full = False
        run.train("--resume")

    assert kept
    require_each_turn_once(run, steps=3)
