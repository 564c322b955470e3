"""Kills a run at random moments with SIGKILL, resumes it each time, and compares it with an undisturbed one.

.venv/bin/python benchmarks/kill_and_resume.py --kills 5
"""

import argparse
import random
import time
from pathlib import Path

from runs import EXAMPLE, measure, table

from support.training_runs import TrainingRun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--longest", type=float, default=110.0, help="seconds an attempt may live, at most")
    parser.add_argument("--job", type=Path, default=EXAMPLE)
    parser.add_argument("--output", type=Path, default=Path("runs/benchmarks/kill_and_resume"))
    options = parser.parse_args()
    moments = random.Random(options.seed)
    run = TrainingRun(options.job, options.output / str(int(time.time())))
    settings = ("--set", "training.checkpointEvery=1")
    rows = []
    for number in range(options.kills):
        attempt = run.start(*settings, *(("--resume",) if number else ()))
        # Every moment counts alike, the start, a checkpoint that is being written and the warm-up among them.
        moment = moments.uniform(5, options.longest)
        time.sleep(moment)
        attempt.kill()
        last_step = max((row["step"] for row in run.metrics), default="-")
        rows.append([number + 1, f"{moment:.0f}", last_step, max(run.checkpoints(), default="-")])
    end = measure(options.job, run.folder, *settings, "--resume")
    steps = [row["step"] for row in run.metrics]
    print(table(["kill", "after s", "step in metrics", "checkpoint"], rows))
    print(f"exit code {end.exit_code}, steps {steps}, each once: {len(steps) == len(set(steps))}")
    print(f"success {end.summary['success_first']:.3f} before, {end.summary['success_final']:.3f} after")


if __name__ == "__main__":
    main()
