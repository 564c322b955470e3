"""Runs in namespaces of their own."""

import argparse
import json
import os
import shutil
import subprocess
import sys

from chaos.measures import Record
from results_file import ROOT

RUNS = ROOT / "runs" / "chaos"


class BenchmarkError(Exception):
    """The benchmark has no record of a run."""


def contained(
    name: str, kind: str, seed: int, options: argparse.Namespace, *, moment: float = 0.0, every: float | None = None
) -> Record:
    """Run in namespaces; the shell is their first process, and takes leave of what others leave behind.

    With `every`, faults of the group `kind` come again and again, with so many seconds between two.
    """
    label = f"{kind.replace(' ', '-')}-{seed}" + (f"-every-{every:g}" if every is not None else "")
    output = RUNS / name / label
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    folder = output / "files"
    folder.mkdir()
    words = {
        "system": name, "fault": kind, "seed": seed, "steps": options.steps, "moment": moment, "every": every or 0.0,
        "hang-seconds": options.hang_seconds, "longest": options.longest, "folder": folder, "output": output,
    }  # fmt: skip
    inside = [sys.executable, "-m", "chaos.inside", *(["--repeats"] if every is not None else [])]
    inside += [part for word, value in words.items() for part in (f"--{word}", str(value))]
    rights = [] if os.geteuid() == 0 else ["--map-root-user"]
    paths = [ROOT / each for each in ("platform", "operator", "tests", "benchmarks")]
    variables = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "CHAOS_INSIDE": "1", "OMP_NUM_THREADS": "1"}
    with (output / "benchmark.txt").open("wb") as log:
        subprocess.run(
            ["unshare", *rights, "--net", "--pid", "--mount", "--ipc", "--fork", "--kill-child", "--mount-proc", "--",
             "bash", "-c", '"$@"; exit $?', "bash", *inside],
            env=os.environ | variables,
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False,
        )  # fmt: skip
    found = output / "record.json"
    if not found.exists():
        raise BenchmarkError(f"the benchmark itself failed:\n{(output / 'benchmark.txt').read_text()[-3000:]}")
    return Record.from_json(json.loads(found.read_text()))
