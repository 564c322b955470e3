"""Comparison of two runs by the episodes that their last validations have in common."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from turnmill.core.errors import SettingsError
from turnmill.observability.proportions import Pairs, interval_of_share
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.summary import validations
from turnmill.observability.trajectory_log import EpisodeRecord, TrajectoryLog


class TaskKey(NamedTuple):
    """What makes validation episodes of two runs the same: they begin in the same state."""

    environment: str
    number: int
    """Number of the episode or of its task in the validation."""

    seed: int | None
    """Seed of the environment; None if the prompt alone is the task."""

    prompt: str
    """Prompt of the first turn."""


@dataclass(frozen=True, slots=True)
class LastValidation:
    """Episodes of the last validation of a run."""

    run_dir: Path
    step: int
    solved: Mapping[TaskKey, tuple[bool, ...]]
    """Whether each episode of a task was solved; groups play a task several times."""

    @property
    def num_episodes(self) -> int:
        """Number of episodes that did not fail."""
        return sum(map(len, self.solved.values()))

    @classmethod
    def read(cls, run_dir: Path) -> "LastValidation":
        """Read the last complete validation of a run. Raises SettingsError if there is none."""
        folder = RunFolder(run_dir)
        # While a validation is going on, only its short episodes are in the log.
        complete = validations(list(folder.read_metrics()))
        if not complete:
            raise SettingsError(
                f"{run_dir} has no validation yet: runs are compared by the episodes of their last validations. Wait "
                "for the first one, or run the job with training.validation.episodes above 0."
            )
        step = complete[-1].step
        return cls(run_dir, step, _solved(TrajectoryLog(folder).read_validation(step)))


def compare(a: LastValidation, b: LastValidation) -> Pairs:
    """Count the outcomes of the episodes that both runs played. Raises SettingsError if there are none."""
    outcomes = [
        pair for key in a.solved.keys() & b.solved.keys() for pair in zip(a.solved[key], b.solved[key], strict=False)
    ]
    if not outcomes:
        raise SettingsError(
            f"{a.run_dir} and {b.run_dir} have no validation episode in common: {_difference(a, b)}. Runs are compared "
            "by episodes with the same environment, number, seed and first prompt: give both jobs the same environment "
            "and prompt, and the same training.validation.seed."
        )
    return Pairs(
        both=outcomes.count((True, True)),
        only_a=outcomes.count((True, False)),
        only_b=outcomes.count((False, True)),
        neither=outcomes.count((False, False)),
    )


def comparison_text(run_dir_a: Path, run_dir_b: Path) -> RenderableType:
    """Return the comparison of two runs, ready to print. Raises SettingsError if they cannot be compared."""
    a, b = LastValidation.read(run_dir_a), LastValidation.read(run_dir_b)
    pairs = compare(a, b)
    low, high = pairs.interval()
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column()
    table.add_column()
    for name, run, successes in zip("AB", (a, b), pairs.successes, strict=True):
        table.add_row(f"{name}", Text(f"{run.run_dir}, validation of step {run.step}"))
        table.add_row(f"success of {name}", _share(successes, pairs.total))
    table.add_row("pairs of episodes", f"{pairs.total}{_left_out(a, b, pairs)}")
    table.add_row("solved by both", str(pairs.both))
    table.add_row("solved by A only", str(pairs.only_a))
    table.add_row("solved by B only", str(pairs.only_b))
    table.add_row("solved by neither", str(pairs.neither))
    table.add_row("difference, B - A", f"{_points(pairs.difference)} points")
    table.add_row("95 % interval", f"{_points(low)} to {_points(high)} points")
    table.add_row("McNemar's exact p-value", f"{pairs.p_value():.2g}")
    return Group(table, Text(), Text(_conclusion(pairs)))


def _solved(episodes: Iterable[EpisodeRecord]) -> dict[TaskKey, tuple[bool, ...]]:
    """Return the outcomes by task; success is as in the metrics: the last reward is positive."""
    # A validation that an attempt has repeated replaces the episodes of the same name.
    found: defaultdict[TaskKey, dict[str, bool]] = defaultdict(dict)
    for episode in episodes:
        if episode.outcome in ("failed", "unfinished"):
            continue
        first, last = episode.turns[0], episode.turns[-1]
        key = TaskKey(first.environment_name, first.environment, first.seed, first.prompt)
        found[key][episode.name] = last.reward > 0
    return {key: tuple(solved for _, solved in sorted(by_name.items())) for key, by_name in found.items()}


def _difference(a: LastValidation, b: LastValidation) -> str:
    """Describe the first part of the key in which all episodes differ."""
    names_a, names_b = ({key.environment for key in run.solved} for run in (a, b))
    if names_a.isdisjoint(names_b):
        return f"A played in {_listed(names_a)}, B in {_listed(names_b)}"
    seeds_a, seeds_b = ({key.seed for key in run.solved} for run in (a, b))
    if seeds_a.isdisjoint(seeds_b):
        return "their seeds differ"
    return "their numbers or first prompts differ"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(name or "an unnamed environment" for name in names)) or "no episode"


def _left_out(a: LastValidation, b: LastValidation, pairs: Pairs) -> str:
    of_a, of_b = a.num_episodes - pairs.total, b.num_episodes - pairs.total
    return f" ({of_a} of A and {of_b} of B are in no pair)" if of_a or of_b else ""


def _share(successes: int, total: int) -> str:
    interval = interval_of_share(successes / total, total)
    assert interval is not None
    return f"{successes / total:.1%} (95 % interval {interval[0]:.1%} to {interval[1]:.1%})"


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def _conclusion(pairs: Pairs) -> str:
    low, high = pairs.interval()
    if low <= 0 <= high:
        return "The interval contains 0: these episodes do not show which run is better."
    better = "B" if low > 0 else "A"
    if pairs.p_value() >= 0.05:
        return f"{better} seems better, but the exact test does not confirm it: validate with more episodes."
    return f"{better} is better in these episodes: the interval does not contain 0."
