"""Trains the examples for a CPU to their end over several seeds, and reports what they learned.

.venv/bin/python benchmarks/learning.py run [--jobs EXAMPLE...] [--seeds 0 1 2]
.venv/bin/python benchmarks/learning.py page
.venv/bin/python benchmarks/learning.py check

`run` trains what has no result of the present code, one run after the other, and adds a line to
`benchmarks/results/learning.jsonl` after each; a run that was killed is resumed. `page` writes `docs/learning.md`, its
pictures, and what other pages say of an example between `<!-- learned: EXAMPLE -->` and `<!-- end -->`. `check` fails
if a page is not what `page` writes: a result of other code is marked as stale there.
"""

import argparse
import hashlib
import io
import re
import signal
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import learning_comparison
from example_code import files_of
from results_file import append_result, present_commit, read_results

from turnmill.cli.run_dirs import is_run
from turnmill.core.code_hash import hash_code
from turnmill.observability.proportions import interval_of_share
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.summary import validations

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "manifests" / "examples"
RESULTS = ROOT / "benchmarks" / "results" / "learning.jsonl"
SAME_STEPS = RESULTS.with_name("same_steps.jsonl")
PAGE, PICTURES = ROOT / "docs" / "learning.md", ROOT / "docs" / "images" / "learning"
SEEDS = (0, 1, 2)
PACKAGES = ROOT / "requirements" / "cpu.txt"
QUOTING = (
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{page}.md"
        for page in ("algorithms", "benchmarks", "grl", "harnesses", "multi-turn", "tool-agent")
    ),
)
"""Pages that say what an example learns."""

QUOTED = re.compile(r"(<!-- learned: ([\w-]+) -->).*?(<!-- end -->)", re.DOTALL)
# The same job with another queue, beginning or placement.
SAME_JOBS = ("babyai-goto-queued-cpu", "babyai-goto-resumed-cpu", "babyai-goto-separate-cpu")


@dataclass(frozen=True, slots=True)
class Variant:
    """An example with other settings, which has results of its own."""

    of: str
    settings: tuple[str, ...]

    @property
    def arguments(self) -> list[str]:
        """Arguments of `turnmill run`."""
        return [word for setting in self.settings for word in ("--set", setting)]


OF_ALL = (
    "adamBetas: [0.9, 0.95], weightDecay: 0, kl: {coefficient: 0.01}, actorLearningRate: 5e-4, "
    "learningRateSchedule: cosine, minibatchTasks: 2"
)
"""What the algorithms of `babyai-goto-gigpo-cpu` have in common."""

# Two dozen steps are enough to see whether an algorithm learns.
VARIANTS = {
    f"tool-arithmetic-{name}-cpu": Variant("tool-arithmetic-cpu", ("training.steps=24", *settings))
    for name, settings in {
        "grpo": (),
        "ppo": ("algorithm.type=ppo", "algorithm.criticLearningRate=1e-3"),
        "reinforce": ("algorithm.type=reinforce_plus_plus",),
        "reinforce-baseline": ("algorithm.type=reinforce_plus_plus_baseline",),
        "rloo": ("algorithm.type=rloo",),
    }.items()
} | {
    f"babyai-goto-{name}-cpu": Variant("babyai-goto-gigpo-cpu", (f"algorithm={{{settings}, {OF_ALL}}}",))
    for name, settings in {
        "grpo": "type: grpo",
        "ppo": "type: ppo, criticLearningRate: 1e-3",
        "reinforce": "type: reinforce_plus_plus",
        "reinforce-baseline": "type: reinforce_plus_plus_baseline",
        "rloo": "type: rloo",
    }.items()
}
"""Examples with another algorithm."""

INTRODUCTION = """\
# What the examples learn

Every example for a CPU, trained to its end. The seed decides the model, its warm start and the run; on another kind of
processor, where sums are rounded otherwise, the same seed makes another model. Success is the share of the validation's
episodes that succeed, with its 95 % interval (Wilson). The command that trains them and makes this page:

```
make nightly
```

It takes hours on two cores. A night that was interrupted continues where it was. The results, with their curves, are in
`benchmarks/results/learning.jsonl`. A result is **stale** if the example, the packages or the code that it uses of
training, rollout, environments, tasks, tools or jobs has changed since. That of other agent kinds, environments and
tools does not count, nor a change with which the first steps of examples of each kind of agent are the same in every
digit: `benchmarks/same_steps.py` trains them with both states of the code, and keeps what it found in
`benchmarks/results/same_steps.jsonl`. `make check` fails if this page does not say so.
Times are of two cores that had other work during some of the runs; processor time is of the run alone.
"""


FACTOR, ENOUGH = 2, 0.80
"""What an example must reach that has no number of its own: so many times what it began with, or this success."""


@dataclass(frozen=True, slots=True)
class Target:
    """What an example must reach, as the median of its seeds."""

    before: float | None
    """Most success before training; None if only the end counts."""

    after: float | None
    """Least success after training; None for `FACTOR` times that before, or `ENOUGH`."""

    worst: float | None = None
    """Least success of the worst seed."""

    def __str__(self) -> str:
        bounds = "" if self.before is None else f"from at most {self.before:.2f} "
        end = f"{self.after:.2f}" if self.after is not None else f"{FACTOR} times that, or {ENOUGH:.2f}"
        worst = "" if self.worst is None else f", and no seed below {self.worst:.2f}"
        return f"The median must rise {bounds}to at least {end}{worst}"

    def is_reached(self, before: Sequence[float], after: Sequence[float]) -> bool:
        """Return whether the seeds' successes reach it."""
        start, end = statistics.median(before), statistics.median(after)
        least = self.after if self.after is not None else min(ENOUGH, FACTOR * start)
        return (
            end >= least
            and (self.before is None or start <= self.before)
            and (self.worst is None or min(after) >= self.worst)
        )


TARGETS = {
    "babyai-goto-cpu": Target(0.45, 0.85),
    "tool-arithmetic-cpu": Target(0.20, 0.80, worst=0.70),
    "babyai-gotolocal-cpu": Target(0.25, 0.75, worst=0.65),
    "sokoban-cpu": Target(0.15, 0.60),
    "babaisai-cpu": Target(0.45, 0.80),
    "babyai-goto-gigpo-cpu": Target(0.45, 0.85),
    "blocksworld-cpu": Target(0.40, None),
    "calculator-harness-cpu": Target(0.20, 0.80),
    "calculator-multi-turn-cpu": Target(0.20, 0.80),
    "sokoban-grl-cpu": Target(0.15, None),
    "tetris-cpu": Target(0.40, None),
    "tool-arithmetic-dapo-cpu": Target(0.20, 0.80),
    **{name: Target(0.20, 0.80) if name.startswith("tool") else Target(0.45, None) for name in VARIANTS},
}


@dataclass(frozen=True, slots=True)
class Result:
    """One finished run of an example."""

    example: str
    seed: int
    code: str
    """Hash of what the result depends on; see `hash_of`."""

    commit: str
    date: str
    exit_code: int
    before: float | None
    """Success of the validation before the first step, between 0 and 1."""

    after: float | None
    episodes: int
    """Episodes of a validation."""

    seconds: float | None
    """Time of the run without the warm start."""

    warm_start_seconds: float
    cpu_minutes: float | None
    """Processor time of the run and the warm start; None for a run that was resumed."""

    curve: Sequence[tuple[int, float]]
    """Success of each validation, by step."""

    rewards: Sequence[tuple[int, float]]
    """Mean reward of each step."""

    @property
    def is_current(self) -> bool:
        """Return whether it was measured on the present code."""
        return self.code == hash_of(self.example)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("--jobs", nargs="+", default=examples(), choices=examples())
    run.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    commands.add_parser("page")
    commands.add_parser("check")
    options = parser.parse_args()
    # Raised as an exception, which ends the run that is under way.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if options.command == "run":
        sys.exit(train(options.jobs, options.seeds))
    elif options.command == "page":
        write_page()
    else:
        check_page()


def examples() -> list[str]:
    """Return the names of the examples and variants that are trained."""
    return sorted({file.stem for file in EXAMPLES.glob("*-cpu.yaml")} - set(SAME_JOBS) | set(VARIANTS))


def job_of(example: str) -> Path:
    """Return the job file of an example or of a variant."""
    variant = VARIANTS.get(example)
    return EXAMPLES / f"{variant.of if variant else example}.yaml"


def arguments_of(example: str) -> list[str]:
    """Return the arguments of `turnmill run` that an example or a variant needs beside its job file."""
    variant = VARIANTS.get(example)
    return variant.arguments if variant else []


@cache
def hash_of(example: str) -> str:
    """Return the hash of all that decides what an example learns: its file, settings, code and packages; 12 digits."""
    files = sorted({*files_of(job_of(example)), *_removed()})
    total = hashlib.sha256(" ".join(filter(None, map(_hash_of_file, files))).encode())
    for file in (job_of(example), PACKAGES):
        total.update(b"\n".join(line for line in file.read_bytes().splitlines() if not line.lstrip().startswith(b"#")))
    total.update(" ".join(arguments_of(example)).encode())
    return total.hexdigest()[:12]


@cache
def _hash_of_file(file: Path) -> str:
    """Return the hash of a file that several examples use: of the first with which their steps are the same.

    It is empty if the file was added, and the steps are the same as without it. A removed one has the hash that it had.
    """
    now = hash_code([file]) if file not in _removed() else ""
    place, seen = (str(file.relative_to(Path(__file__).parents[1])), now), set[tuple[str, str]]()
    while place in _earlier() and place not in seen:
        seen.add(place)
        place = place[0], _earlier()[place]
    return place[1]


@cache
def _removed() -> frozenset[Path]:
    """Return the files that were removed, without which the steps of all examples are the same."""
    files = (Path(__file__).parents[1] / same.file for same in read_results(SAME_STEPS, SameSteps) if not same.now)
    return frozenset(file for file in files if not file.exists())


@cache
def _earlier() -> Mapping[tuple[str, str], str]:
    """Return, by file and hash, the hash of an earlier one with which the steps of examples are the same."""
    # Of two results the older one counts.
    return {(same.file, same.now): same.was for same in reversed(read_results(SAME_STEPS, SameSteps))}


@dataclass(frozen=True, slots=True)
class SameSteps:
    """A file with which examples do the same steps, in every digit, as with an earlier one; see `same_steps.py`.

    `was` is empty if there was no such file, `now` if there is none any more.
    """

    file: str
    was: str
    now: str
    commit: str
    """The commit of the earlier one."""

    examples: Sequence[str]
    date: str


# ---- training ----


def train(jobs: Sequence[str], seeds: Sequence[int]) -> int:
    """Train every job over every seed that has no result of the present code; return 1 if one failed."""
    done = {(result.example, result.seed) for result in results() if result.is_current and result.exit_code == 0}
    failed = False
    for example in jobs:
        for seed in seeds:
            if (example, seed) in done:
                print(f"{example}, seed {seed}: has a result of this code", flush=True)
                continue
            result = train_one(example, seed)
            append(result)
            failed |= result.exit_code != 0
            print(f"{example}, seed {seed}: {_share(result.before)} before, {_share(result.after)} after", flush=True)
    return int(failed)


def train_one(example: str, seed: int) -> Result:
    """Make the warm start, and train or resume the run."""
    from main_job import one  # imports what only a run needs

    run_dir = ROOT / "runs" / "nightly" / f"{example}-{seed}-{hash_of(example)}"
    resumed = is_run(run_dir)
    arguments = [*arguments_of(example), *(["--resume"] if resumed else [])]
    warm_start, measured = one(job_of(example), run_dir, seed, *arguments)
    rows = list(RunFolder(run_dir).read_metrics())
    return Result(
        example, seed, hash_of(example), present_commit(), time.strftime("%Y-%m-%d", time.gmtime()),
        exit_code=measured.exit_code,
        before=measured.summary.get("success_first"),
        after=measured.summary.get("success_final"),
        episodes=measured.summary.get("success_first_episodes") or 0,
        seconds=measured.summary.get("seconds_total"),
        warm_start_seconds=warm_start.seconds,
        cpu_minutes=None if resumed else (warm_start.cpu_seconds + measured.cpu_seconds) / 60,
        curve=[(validation.step, validation.success) for validation in validations(rows)],
        rewards=[(row["step"], row["turnmill/reward_mean"]) for row in rows if "turnmill/reward_mean" in row],
    )  # fmt: skip


def append(result: Result) -> None:
    """Add a result to the file."""
    append_result(RESULTS, result)


def results() -> list[Result]:
    """Return all results, oldest first."""
    return read_results(RESULTS, Result)


# ---- the page ----


def write_page() -> None:
    """Write the page, its pictures and what other pages say of results."""
    PICTURES.mkdir(exist_ok=True)
    latest = latest_results()
    for example in {result.example for result in latest if result.curve}:
        _draw(example, [result for result in latest if result.example == example])
    learning_comparison.draw(latest, PICTURES)
    for file, text in _pages().items():
        file.write_text(text)


def check_page() -> None:
    """Fail if a page is not what `write_page` writes."""
    old = [str(file.relative_to(ROOT)) for file, text in _pages().items() if file.read_text() != text]
    if old:
        sys.exit(
            f"What {', '.join(old)} says of learning is not of this code. Write it anew with: "
            ".venv/bin/python benchmarks/learning.py page"
        )


def _pages() -> dict[Path, str]:
    quoting = {
        file: QUOTED.sub(lambda found: f"{found[1]}{statement(found[2])}{found[3]}", file.read_text())
        for file in QUOTING
    }
    return {PAGE: page(), **quoting}


def statement(example: str) -> str:
    """Return what an example learns, as the rest of a sentence about its success."""
    runs = [result for result in latest_results() if result.example == example]
    before, after = _median(run.before for run in runs), _median(run.after for run in runs)
    if before is None or after is None:
        return "has not been measured"
    known = f"rises from {100 * before:.0f} % to {100 * after:.0f} % ({_seeds(len(runs))}"
    return (
        f"{known})" if all(run.is_current for run in runs) else f"{known}, measured before the last change of the code)"
    )


def latest_results() -> list[Result]:
    """Return the newest result of every example and seed; those of the present code count as newer."""
    newest: dict[tuple[str, int], Result] = {}
    for result in sorted(results(), key=lambda result: result.is_current):
        newest[result.example, result.seed] = result
    return [newest[key] for key in sorted(newest)]


def page() -> str:
    """Return the page of the results."""
    return "\n".join(_page_lines())


def _page_lines() -> Iterator[str]:
    latest = latest_results()
    yield INTRODUCTION
    for example in sorted({result.example for result in latest}):
        yield from _section(example, [result for result in latest if result.example == example])
    yield from learning_comparison.sections(latest)
    missing = [example for example in examples() if example not in {result.example for result in latest}]
    if missing:
        yield from ("## Without a result", "", *(f"- `{example}`" for example in missing), "")


def _section(example: str, runs: Sequence[Result]) -> Iterator[str]:
    yield from (f"## {example}", "")
    if variant := VARIANTS.get(example):
        settings = ", ".join(f"`{setting}`" for setting in variant.settings)
        yield from (f"The example `{variant.of}` with {settings}.", "")
    if not all(run.is_current for run in runs):
        yield from ("**Stale:** something that decides what this example learns has changed since.", "")
    if target := TARGETS.get(example):
        before = [run.before for run in runs if run.before is not None]
        after = [run.after for run in runs if run.after is not None]
        verdict = "does" if before and after and target.is_reached(before, after) else "does not"
        yield from (f"{target}: it {verdict} ({_seeds(len(runs))}).", "")
    yield "| seed | before | after | run s | warm start s | CPU min | commit | date |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for run in runs:
        cells = (
            str(run.seed), _with_interval(run.before, run.episodes), _with_interval(run.after, run.episodes),
            _number(run.seconds), _number(run.warm_start_seconds), _number(run.cpu_minutes, 1), run.commit,
            run.date + ("" if run.is_current else ", stale"),
        )  # fmt: skip
        yield f"| {' | '.join(cells)} |"
    medians = [_median(run.before for run in runs), _median(run.after for run in runs)]
    yield f"| median | {_share(medians[0])} | {_share(medians[1])} | | | | | |"
    if any(run.curve for run in runs):
        yield from ("", f"![Success by step](images/learning/{example}.svg)")
    yield ""


def _seeds(number: int) -> str:
    return "one seed" if number == 1 else f"median of {number} seeds"


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _number(value: float | None, digits: int = 0) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _with_interval(share: float | None, episodes: int) -> str:
    interval = interval_of_share(share, episodes)
    return f"{_share(share)} ({interval[0]:.2f}–{interval[1]:.2f})" if interval else _share(share)


def _draw(example: str, runs: Sequence[Result]) -> None:
    """Draw success and reward by step, one line for each seed; equal results give an equal file."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": example, "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    figure, (success, reward) = pyplot.subplots(1, 2, figsize=(8, 2.6), layout="constrained")
    for run in (run for run in runs if run.curve):
        success.plot(*zip(*run.curve, strict=True), marker="o", markersize=3, label=f"seed {run.seed}")
        reward.plot(*zip(*run.rewards, strict=True), linewidth=1)
    for axes, name in ((success, "success of validation"), (reward, "mean reward of training")):
        axes.set(xlabel="step", ylabel=name)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    success.set_ylim(0, 1)
    success.legend(frameon=False)
    picture = io.StringIO()
    figure.savefig(picture, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    text = "\n".join(line.rstrip() for line in picture.getvalue().splitlines())
    (PICTURES / f"{example}.svg").write_text(text + "\n")


if __name__ == "__main__":
    main()
