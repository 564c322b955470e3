"""Shows that a change of code leaves the steps of examples as they were, so that their results stay valid.

OMP_NUM_THREADS=1 PYTHONPATH=tests .venv/bin/python benchmarks/same_steps.py COMMIT [EXAMPLE...]

Trains the first steps of each example twice, with the code of COMMIT and with that of the working tree, and compares
all metrics of the first but times and memory. If none differs in any digit, the hashes of the changed files go to
`benchmarks/results/same_steps.jsonl`, and `benchmarks/learning.py` takes the new files for the old ones. That is meant
for what no example does: a GPU, a failure, another type. A change of what is learned has to be trained.
"""

import argparse
import math
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from example_code import FOLDERS, files_of, is_used_by_all
from learning import SAME_STEPS, SameSteps, arguments_of, examples, job_of
from results_file import ROOT, append_result
from runs import table

from support.training_runs import TrainingRun
from turnmill.core.code_hash import hash_code

EXAMPLES = (
    "babyai-goto-cpu", "babyai-goto-gigpo-cpu", "calculator-harness-cpu", "calculator-multi-turn-cpu",
    "sokoban-grl-cpu", "tool-arithmetic-cpu", "tool-arithmetic-ppo-cpu",
)  # fmt: skip
"""Each kind of agent that has examples, with and without a critic. One that is new has nothing to be compared with."""

STEPS = 2
OF_TIME_AND_MEMORY = re.compile(
    r"^time$|seconds|timing|perf/|per_second|throughput|step_parts|time_sec|session_request_time|response_size_mb",
    re.IGNORECASE,
)
"""Replies of tool servers say how long a call took, in as many digits as it has."""


@dataclass(frozen=True)
class Change:
    """A file of the platform that two states of the code have otherwise: `was` or `now` is empty if one has none."""

    file: str
    was: str
    now: str


def main() -> None:
    """Train, compare, and note the changed files if all steps are the same."""
    parser = argparse.ArgumentParser()
    parser.add_argument("commit")
    parser.add_argument("examples", nargs="*", default=EXAMPLES)
    arguments = parser.parse_args()
    with _checkout(arguments.commit) as old, tempfile.TemporaryDirectory() as runs:
        of_any = _used(_older(examples(), old))
        compared = list(_older(arguments.examples, old))
        changes = [change for change in _changes(old) if not change.now or change.file in of_any]
        if not changes:
            sys.exit(f"Nothing that examples use has changed since {arguments.commit}.")
        used = _used(compared)
        if unused := [change.file for change in changes if change.now and change.file not in used]:
            sys.exit(f"No example among {', '.join(compared)} uses {', '.join(unused)}.")
        rows, differ = [], []
        for example in compared:
            was, now = (_steps(example, code, Path(runs)) for code in (old, ROOT))
            names = [name for name in was[-1] if not OF_TIME_AND_MEMORY.search(name)]
            found = sorted({name for a, b in zip(was, now, strict=True) for name in names if not _same(a, b, name)})
            differ += [f"{example}: {name}" for name in found]
            rows.append((example, len(was), len(names), len(found)))
    print(table(("example", "rows", "metrics", "that differ"), rows))
    if differ:
        sys.exit("\n".join(("These differ:", *differ)))
    commit = subprocess.run(
        ["git", "rev-parse", "--short", arguments.commit], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    for change in changes:
        today = time.strftime("%Y-%m-%d", time.gmtime())
        append_result(SAME_STEPS, SameSteps(change.file, change.was, change.now, commit, compared, today))


def _older(names: Iterable[str], code: Path) -> Iterator[str]:
    """Yield the examples that another state of the code has as well."""
    return (name for name in names if (code / job_of(name).relative_to(ROOT)).exists())


def _used(names: Iterable[str]) -> set[str]:
    """Return the files that decide what these examples learn."""
    return {str(file.relative_to(ROOT)) for name in names for file in files_of(job_of(name))}


@contextmanager
def _checkout(commit: str) -> Iterator[Path]:
    """Check out a commit into a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder) / "code"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(code), commit], cwd=ROOT, check=True)
        try:
            yield code
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(code)], cwd=ROOT, check=True)


def _changes(old: Path) -> Iterator[Change]:
    """Yield the files that were changed, added or removed; exits if not all examples used a removed one."""
    platform = Path("platform") / "turnmill"
    files = [
        {path.relative_to(root) for folder in FOLDERS for path in (root / platform / folder).rglob("*.py")}
        for root in (old, ROOT)
    ]
    if removed := [str(file) for file in sorted(files[0] - files[1]) if not is_used_by_all(ROOT / file)]:
        sys.exit(f"Removed, so that some examples are of other code: {', '.join(removed)}")
    for file in sorted(files[0] | files[1]):
        was, now = (
            hash_code([root / file]) if file in found else "" for root, found in zip((old, ROOT), files, strict=True)
        )
        if was != now:
            yield Change(str(file), was, now)


def _steps(example: str, code: Path, runs: Path) -> list[dict[str, Any]]:
    """Return the metrics of an example's first steps."""
    places = ":".join(str(code / place) for place in ("platform", "operator", "tests"))
    folder = runs / f"{example}-{code.name}"
    with TrainingRun(job_of(example), folder, {"PYTHONPATH": places}) as run:
        run.train(
            *arguments_of(example), "--set", f"training.steps={STEPS}", "--set", "training.validation.episodes=16"
        )
        return run.metrics


def _same(a: Mapping[str, Any], b: Mapping[str, Any], name: str) -> bool:
    x, y = a.get(name), b.get(name)
    return x == y or all(isinstance(each, float) and math.isnan(each) for each in (x, y))


if __name__ == "__main__":
    main()
