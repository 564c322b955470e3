"""A job over several seeds: success, time and memory. The seed makes the model, its warm start and the run.
CPU minutes are those of the warm start and the run together.

.venv/bin/python benchmarks/main_job.py --seeds 0 1 2
.venv/bin/python benchmarks/main_job.py --job manifests/examples/tool-arithmetic-cpu.yaml --seeds 0 1 2
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from runs import EXAMPLE, Measured, measure, table

WARM_START = """
import sys
from turnmill.jobs import load_job
from turnmill.training.warm_start import ensure_warm_start
spec = load_job(sys.argv[1], [f"model.warmStart.seed={sys.argv[2]}"]).spec
ensure_warm_start(spec.model.warm_start, environment=spec.environment, agent=spec.agent)
"""
COLUMNS = {
    "exit code": "{:.0f}",
    "success before": "{:.3f}",
    "after": "{:.3f}",
    "warm start s": "{:.0f}",
    "run s": "{:.0f}",
    "CPU min": "{:.1f}",
    "to first step s": "{:.0f}",
    "neither": "{:.1%}",
    "memory GB": "{:.2f}",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--job", type=Path, default=EXAMPLE)
    parser.add_argument("--output", type=Path, default=Path("runs/benchmarks/main_job"))
    options = parser.parse_args()
    results: dict[int, tuple[WarmStart, Measured]] = {}
    for seed in options.seeds:
        results[seed] = one(options.job, options.output / f"{options.job.stem}-{seed}-{int(time.time())}", seed)
        # After each: what is known stays known if a later one is interrupted.
        print(table_of(results), flush=True)
    print(json.dumps({seed: run.summary for seed, (_, run) in results.items()}))
    sys.exit(any(run.exit_code for _, run in results.values()))


class WarmStart(NamedTuple):
    """Time of the warm start; next to nothing if the result is cached."""

    seconds: float
    cpu_seconds: float


def one(job: Path, run_dir: Path, seed: int, *arguments: str) -> tuple[WarmStart, Measured]:
    """The warm start, and the run, with further arguments of `turnmill run`."""
    started, cpu_before = time.monotonic(), _cpu_seconds_of_children()
    # What is wrong with it the run tells as well.
    subprocess.run([sys.executable, "-c", WARM_START, str(job), str(seed)], check=False)
    warm_start = WarmStart(time.monotonic() - started, _cpu_seconds_of_children() - cpu_before)
    seeds = ("--set", f"training.seed={seed}", "--set", f"model.warmStart.seed={seed}")
    return warm_start, measure(job, run_dir, *seeds, *arguments)


def _cpu_seconds_of_children() -> float:
    taken = resource.getrusage(resource.RUSAGE_CHILDREN)
    return taken.ru_utime + taken.ru_stime


def table_of(results: dict[int, tuple[WarmStart, Measured]]) -> str:
    rows = {f"seed {seed}": figures(warm_start, run) for seed, (warm_start, run) in results.items()}
    known = [[value for value in column if value is not None] for column in zip(*rows.values(), strict=True)]
    rows["median"] = [statistics.median(column) if column else None for column in known]
    return table(["", *COLUMNS], [[name, *map(cell, COLUMNS.values(), values)] for name, values in rows.items()])


def figures(warm_start: WarmStart, run: Measured) -> list[float | None]:
    summary = run.summary
    success = summary.get("success_first"), summary.get("success_final")
    cpu_minutes = (warm_start.cpu_seconds + run.cpu_seconds) / 60
    times = (
        warm_start.seconds,
        run.seconds,
        cpu_minutes,
        summary.get("seconds_to_first_step"),
        summary.get("overhead_share"),
    )
    return [run.exit_code, *success, *times, run.peak_bytes / 1e9]


def cell(form: str, value: float | None) -> str:
    return "–" if value is None else form.format(value)


if __name__ == "__main__":
    main()
