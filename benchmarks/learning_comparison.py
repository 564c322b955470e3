"""Compares what algorithms learn from a job with the same budget of steps, over the seeds of the nightly runs."""

import io
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Comparison:
    """Examples and variants that differ in nothing but the algorithm."""

    title: str
    job: str
    """What they have in common, as lines of the page."""

    algorithms: Mapping[str, str]
    """Algorithm of each example."""

    @property
    def picture(self) -> str:
        """Name of the picture."""
        return self.title.lower().replace(" ", "-")


COMPARISONS = (
    Comparison(
        "Algorithms compared",
        """\
The job of `tool-arithmetic-cpu` for 24 steps of 16 tasks, each played 8 times, by every algorithm that
fits. DAPO plays further tasks in place of those without a difference in reward. Settings were tuned for `grpo`.""",
        {
            "tool-arithmetic-grpo-cpu": "grpo",
            "tool-arithmetic-dapo-cpu": "dapo",
            "tool-arithmetic-rloo-cpu": "rloo",
            "tool-arithmetic-reinforce-cpu": "reinforce_plus_plus",
            "tool-arithmetic-reinforce-baseline-cpu": "reinforce_plus_plus_baseline",
            "tool-arithmetic-ppo-cpu": "ppo",
        },
    ),
    Comparison(
        "Algorithms compared over turns",
        """\
The job of `babyai-goto-gigpo-cpu` for 12 steps of 8 rooms, each played 8 times, by every algorithm for whole
trajectories. Settings were tuned for `gigpo`.""",
        {
            "babyai-goto-gigpo-cpu": "gigpo",
            "babyai-goto-grpo-cpu": "grpo",
            "babyai-goto-rloo-cpu": "rloo",
            "babyai-goto-reinforce-cpu": "reinforce_plus_plus",
            "babyai-goto-reinforce-baseline-cpu": "reinforce_plus_plus_baseline",
            "babyai-goto-ppo-cpu": "ppo",
        },
    ),
)

STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""The 97.5 % quantile of Student's t distribution with 1 to 9 degrees of freedom."""


class Run(Protocol):
    """What the comparison reads of a result."""

    @property
    def example(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def before(self) -> float | None: ...
    @property
    def after(self) -> float | None: ...
    @property
    def rewards(self) -> Sequence[tuple[int, float]]: ...
    @property
    def is_current(self) -> bool: ...


def sections(results: Sequence[Run]) -> Iterator[str]:
    """Yield the lines of all comparisons; nothing of one before two of its algorithms have results."""
    for comparison in COMPARISONS:
        runs = runs_by_algorithm(results, comparison)
        if len(runs) >= 2:
            yield from _section(comparison, runs)


def _section(comparison: Comparison, runs: Mapping[str, Sequence[Run]]) -> Iterator[str]:
    yield from (
        f"## {comparison.title}",
        "",
        comparison.job,
        "Mean success of the validation over the seeds, with its 95 % interval (Student's t); seeds differ in model,",
        "tasks and sampling. Where intervals overlap, these runs do not tell which algorithm is better.",
        "",
        "| algorithm | seeds | before | after | 95 % interval |",
        "| --- | --- | --- | --- | --- |",
    )
    for algorithm, of_seeds in runs.items():
        after = [run.after for run in of_seeds if run.after is not None]
        before = [run.before for run in of_seeds if run.before is not None]
        stale = "" if all(run.is_current for run in of_seeds) else ", stale"
        low_high = interval(after)
        bounds = f"{low_high[0]:.2f}–{low_high[1]:.2f}" if low_high else "–"
        means = f"{statistics.fmean(before):.3f} | {statistics.fmean(after):.3f}"
        yield f"| `{algorithm}` | {len(after)}{stale} | {means} | {bounds} |"
    yield from ("", f"![Mean reward by step](images/learning/{comparison.picture}.svg)", "")


def runs_by_algorithm(results: Sequence[Run], comparison: Comparison) -> Mapping[str, Sequence[Run]]:
    """Return the finished runs of each algorithm that has some."""
    found = {
        algorithm: [
            run for run in results if run.example == example and run.after is not None and run.before is not None
        ]
        for example, algorithm in comparison.algorithms.items()
    }
    return {algorithm: runs for algorithm, runs in found.items() if runs}


def interval(shares: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean, within 0 and 1; None for less than two values, or more than ten."""
    if not 2 <= len(shares) <= len(STUDENT_T) + 1:
        return None
    mean = statistics.fmean(shares)
    reach = STUDENT_T[len(shares) - 2] * statistics.stdev(shares) / len(shares) ** 0.5
    return max(0.0, mean - reach), min(1.0, mean + reach)


def draw(results: Sequence[Run], folder: Path) -> None:
    """Draw the mean reward by step of each algorithm, with a band from the worst seed to the best."""
    for comparison in COMPARISONS:
        runs = runs_by_algorithm(results, comparison)
        if len(runs) >= 2:
            (folder / f"{comparison.picture}.svg").write_text(_picture(comparison, runs))


def _picture(comparison: Comparison, runs: Mapping[str, Sequence[Run]]) -> str:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.hashsalt": comparison.picture, "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 3.2), layout="constrained")
    for algorithm, of_seeds in runs.items():
        curves = [dict(run.rewards) for run in of_seeds]
        steps = sorted(set.intersection(*(set(curve) for curve in curves)))
        (line,) = axes.plot(
            steps, [statistics.fmean(curve[step] for curve in curves) for step in steps], linewidth=1.2, label=algorithm
        )
        bounds = [[pick(curve[step] for curve in curves) for step in steps] for pick in (min, max)]
        axes.fill_between(steps, *bounds, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set(xlabel="step", ylabel="mean reward of training", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    picture = io.StringIO()
    figure.savefig(picture, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    return "\n".join(line.rstrip() for line in picture.getvalue().splitlines()) + "\n"
