"""The main job over several seeds: success, time, memory, and where the time of a step goes.

.venv/bin/python benchmarks/main_job.py --seeds 0 1 2
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from runs import EXAMPLE, Measured, measure, table

WARM_START = """
import sys
from turnmill.jobs import load_job
from turnmill.training.warm_start import ensure_warm_start
spec = load_job(sys.argv[1], [f"model.warmStart.seed={sys.argv[2]}"]).spec
ensure_warm_start(spec.model.warm_start, environment=spec.environment, max_turns=spec.agent.max_turns)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--job", type=Path, default=EXAMPLE)
    parser.add_argument("--output", type=Path, default=Path("runs/benchmarks/main_job"))
    options = parser.parse_args()
    results = {
        seed: one(options.job, options.output / f"seed-{seed}-{int(time.time())}", seed) for seed in options.seeds
    }
    show(results)


def one(job: Path, run_dir: Path, seed: int) -> tuple[float, Measured]:
    """Seconds of the warm start (near 0 where it is kept), and the run."""
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", WARM_START, str(job), str(seed)], check=True)
    warm_start = time.monotonic() - started
    return warm_start, measure(job, run_dir, "--set", f"training.seed={seed}", "--set", f"model.warmStart.seed={seed}")


def show(results: dict[int, tuple[float, Measured]]) -> None:
    rows = []
    for warm_start, run in results.values():
        summary = run.summary
        rows.append(
            [
                run.exit_code,
                summary["success_first"],
                summary["success_final"],
                warm_start,
                run.seconds,
                summary["seconds_to_first_step"],
                summary["overhead_share"],
                run.peak_bytes / 1e9,
            ]
        )
    medians = [statistics.median(column) for column in zip(*rows, strict=True)]
    names = [*(f"seed {seed}" for seed in results), "median"]
    header = [
        "",
        "exit code",
        "success before",
        "after",
        "warm start s",
        "run s",
        "to first step s",
        "neither",
        "memory GB",
    ]
    formats = ["{:.0f}", "{:.3f}", "{:.3f}", "{:.0f}", "{:.0f}", "{:.0f}", "{:.1%}", "{:.2f}"]
    cells = [
        [name, *(form.format(value) for form, value in zip(formats, row, strict=True))]
        for name, row in zip(names, [*rows, medians], strict=True)
    ]
    print(table(header, cells))
    print(json.dumps({seed: run.summary for seed, (_, run) in results.items()}))


if __name__ == "__main__":
    main()
