"""One run of agents with tools through faults of its machine: a slow disk, processes that stand still, a full disk."""

import time
from pathlib import Path

import pytest

from support.run_faults import COUNTING_JOB, KINDS, require_each_turn_once, standing_still, wait_until_in_mid_step
from support.slow_disk import slow_disk
from support.training_runs import TrainingRun
from turnmill.runs import processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

STOPPED = ("tool server", "store", "agent loops", "engine", "training worker", "queue")
STOPPED_SECONDS = 8.0


def test_a_run_survives_a_slow_disk_and_processes_that_stand_still_and_resumes_after_a_full_disk(tmp_path: Path):
    job, folder = tmp_path / "job.yaml", tmp_path / "run"
    job.write_text(COUNTING_JOB.format(steps=len(STOPPED) + 2))
    with (
        slow_disk(folder, 0.2) as disk,
        TrainingRun(job, folder, {"CALLS_FILE": str(tmp_path / "calls")}, wrap=disk.command) as run,
    ):
        attempt = run.start()
        for step, name in enumerate(STOPPED, start=1):
            wait_until_in_mid_step(run, attempt, step)
            with standing_still(run, KINDS[name]):
                time.sleep(STOPPED_SECONDS)
        wait_until_in_mid_step(run, attempt, len(STOPPED) + 1)
        mark, kept = run.mark(), run.checkpoints()
        disk.is_full = True
        attempt.wait(code=1)
        assert processes.find_marked(mark) == []
        assert "No space left on device" in run.output.read_text(), run.output.read_text()[-3000:]
        assert set(kept[-1:]) <= set(run.checkpoints())
        assert disk.num_delayed > 20

        disk.is_full = False
        run.train("--resume")

    assert kept
    require_each_turn_once(run, steps=len(STOPPED) + 2)
