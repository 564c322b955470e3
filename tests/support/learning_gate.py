"""Short runs of examples, and the success that they must reach.

Each run has the learning rate of its example throughout, so its steps resemble the first steps of a whole run. Its bar
is three standard errors below the median of whole runs at the same steps: far above the success of a policy that does
not learn, and far enough below the median for chance.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, stdev

from support.training_runs import TrainingRun
from turnmill.observability.run_folder import MetricsRow

ROOT = Path(__file__).parents[2]
NIGHTLY = ROOT / "benchmarks" / "results" / "learning.jsonl"

LAST_STEPS = 3
"""Steps whose episodes count: one alone has too few."""

VALIDATION_EPISODES = 64


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a short run has learned."""

    trained: float
    """Success of the episodes of the last steps."""

    episodes: int
    """Number of these."""

    validated: float
    """Success of the validation after the last step."""

    bars: tuple[float, float]
    """Least success in the last steps and in the validation."""

    @property
    def has_learned(self) -> bool:
        """Return whether both are high enough."""
        return self.trained >= self.bars[0] and self.validated >= self.bars[1]

    def __str__(self) -> str:
        return (
            f"success {self.trained:.2f} of {self.episodes} episodes, at least {self.bars[0]:.2f}; "
            f"of the validation {self.validated:.2f}, at least {self.bars[1]:.2f}"
        )


@dataclass(frozen=True, slots=True)
class Gate:
    """A short run of an example."""

    example: str
    steps: int
    measured: Sequence[float] = ()
    """Success at these steps by run, used as long as the nightly results have none."""

    @property
    def job(self) -> Path:
        """The job file."""
        return ROOT / "manifests" / "examples" / f"{self.example}.yaml"

    @property
    def arguments(self) -> list[str]:
        """Arguments of `turnmill run` that make the run short."""
        settings = {
            "training.steps": self.steps,
            "training.validation.episodes": VALIDATION_EPISODES,
            "algorithm.learningRateSchedule": "constant",
        }
        return [word for path, value in settings.items() for word in ("--set", f"{path}={value}")]

    def nightly(self) -> list[float]:
        """Return the success at these steps of each seed; a mean reward is one where rewards are 0 and 1."""
        results = [json.loads(line) for line in NIGHTLY.read_text().splitlines()]
        curves = [dict(result["rewards"]) for result in results if result["example"] == self.example]
        counted = range(self.steps - LAST_STEPS + 1, self.steps + 1)
        return [fmean(curve[step] for step in counted) for curve in curves if self.steps in curve]

    def outcome(self, run: TrainingRun) -> Outcome:
        """Return what a finished run has learned."""
        rows = run.metrics
        trained, episodes = success_of(rows[-LAST_STEPS:])
        expected = self.measured or self.nightly()
        bars = bar(expected, episodes), bar(expected, VALIDATION_EPISODES)
        return Outcome(trained, episodes, rows[-1]["validation/success"], bars)


def bar(expected: Sequence[float], episodes: int) -> float:
    """Return three standard errors below the median: of the choice of episodes, and of the differences between runs."""
    middle = median(expected)
    return middle - 3 * math.sqrt(middle * (1 - middle) / episodes + stdev(expected) ** 2)


def success_of(rows: Sequence[MetricsRow]) -> tuple[float, int]:
    """Return the success over the episodes of some steps, and their number; steps without episodes have no success."""
    counts = [_episodes(row) for row in rows]
    solved = sum(row.get("turnmill/success", 0.0) * count for row, count in zip(rows, counts, strict=True))
    return solved / max(1, sum(counts)), sum(counts)


def _episodes(row: Mapping[str, float]) -> int:
    return int(sum(row.get(f"turnmill/episodes/{reason}") or 0 for reason in ("completed", "max_turns", "max_tokens")))


GATES = (
    Gate("tool-arithmetic-cpu", steps=10),
    Gate("babyai-goto-cpu", steps=7, measured=(0.893, 0.943, 0.983, 0.887, 0.983, 0.947)),
)
