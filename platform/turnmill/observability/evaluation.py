"""Results of an evaluation: a file for programs, a report for people, and the comparison of two of them."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from turnmill.core.errors import SettingsError
from turnmill.observability import atomic_files
from turnmill.observability.pass_at_k import Attempts, Estimate, difference, pass_at
from turnmill.observability.run_folder import RunFolder

RESULTS, REPORT = "evaluation.json", "evaluation.md"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at an episode."""

    episode: int
    sample: int
    success: bool
    reward: float
    num_turns: int
    stop_reason: str
    cause: str | None
    """Kind of infrastructure that failed; None if none did."""


@dataclass(frozen=True, slots=True)
class Results:
    """Results of an evaluation."""

    model: str
    environment: str
    episodes_of: Mapping[str, object]
    """What determines the episodes: environment, task, options, agent and seed."""

    agent: str
    episodes: int
    samples: int
    seed: int
    temperature: float
    seconds: float
    versions: Mapping[str, str | None]
    attempts: tuple[Attempt, ...]

    def tasks(self) -> list[Attempts]:
        """Return the attempts at each episode that did not fail, in order."""
        played = [attempt for attempt in self.attempts if attempt.cause is None]
        total = Counter(attempt.episode for attempt in played)
        solved = Counter(attempt.episode for attempt in played if attempt.success)
        return [Attempts(total[number], solved[number]) for number in range(self.episodes)]

    def estimates(self) -> dict[int, Estimate]:
        """Return pass@k for k = 1, 2, 4 and so on, and for all samples."""
        tasks = self.tasks()
        found = {k: pass_at(k, tasks) for k in ks(self.samples)}
        return {k: estimate for k, estimate in found.items() if estimate is not None}

    def failures(self) -> dict[str, int]:
        """Return the number of attempts that failed because of infrastructure, by its kind."""
        return dict(Counter(attempt.cause for attempt in self.attempts if attempt.cause is not None))


def ks(samples: int) -> list[int]:
    """Return the numbers of attempts for which pass@k is told."""
    powers = {1 << power for power in range(samples.bit_length())}
    return sorted({k for k in powers if k <= samples} | {samples})


def write_results(results: Results, folder: RunFolder) -> None:
    """Write both files."""
    values = asdict(results) | {
        "pass_at": {str(k): asdict(estimate) for k, estimate in results.estimates().items()},
        "failures": results.failures(),
    }
    atomic_files.write_text(folder.path / RESULTS, json.dumps(values, indent=1) + "\n")
    atomic_files.write_text(folder.path / REPORT, "\n".join(_report(results)) + "\n")


def read_results(run_dir: Path) -> Results | None:
    """Return the results in a folder; None if it is that of a training. Raises SettingsError for a damaged file."""
    file = run_dir / RESULTS
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        attempts = tuple(Attempt(**attempt) for attempt in values.pop("attempts"))
        names = Results.__dataclass_fields__.keys() - {"attempts"}
        return Results(**{name: values[name] for name in names}, attempts=attempts)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SettingsError(f"{file} is no result of an evaluation ({error!r}). Evaluate again.") from error


def comparison_lines(a: Results, b: Results) -> Iterator[str]:
    """Yield a table in Markdown with pass@k of both, and the differences over the episodes that both played."""
    tasks_a, tasks_b = a.tasks(), b.tasks()
    yield "| | A | B | B - A |"
    yield "| --- | --- | --- | --- |"
    estimates_a, estimates_b = a.estimates(), b.estimates()
    same = a.episodes_of == b.episodes_of
    for k in sorted(estimates_a.keys() & estimates_b.keys()):
        pairs = min(a.episodes, b.episodes)
        found = difference(k, tasks_a[:pairs], tasks_b[:pairs]) if same else None
        yield f"| pass@{k} | {_text(estimates_a[k])} | {_text(estimates_b[k])} | {_points(found)} |"


def _report(results: Results) -> Iterator[str]:
    played = [attempt for attempt in results.attempts if attempt.cause is None]
    yield f"# {results.model} in {results.environment}"
    yield ""
    yield (
        f"{results.episodes} episodes, {results.samples} {'attempt' if results.samples == 1 else 'attempts'} at each, "
        f"agent `{results.agent}`, temperature {results.temperature:g}, seed {results.seed}."
    )
    yield ""
    yield "| measure | value | 95 % interval | episodes |"
    yield "| --- | --- | --- | --- |"
    for k, estimate in results.estimates().items():
        low, high = estimate.interval
        yield f"| pass@{k} | {estimate.value:.1%} | {low:.1%} to {high:.1%} | {estimate.tasks} |"
    yield ""
    yield "| | |"
    yield "| --- | --- |"
    if played:
        yield f"| mean reward | {sum(attempt.reward for attempt in played) / len(played):.3f} |"
        yield f"| mean turns | {sum(attempt.num_turns for attempt in played) / len(played):.1f} |"
    for reason, count in Counter(attempt.stop_reason for attempt in played).most_common():
        yield f"| ended with `{reason}` | {count} |"
    for cause, count in sorted(results.failures().items()):
        yield f"| failed, and in no figure above: {cause} | {count} |"
    yield f"| seconds | {results.seconds:.0f} |"
    yield f"| versions | {', '.join(f'{name} {version}' for name, version in results.versions.items() if version)} |"
    yield ""
    yield "pass@k is the unbiased estimate of the chance that at least one of k attempts succeeds (Chen et al., 2021)."
    yield "`turnmill view RUN_DIR` shows every attempt turn by turn, `turnmill report A B` compares two evaluations."


def _text(estimate: Estimate) -> str:
    low, high = estimate.interval
    return f"{estimate.value:.1%} ({low:.1%} to {high:.1%})"


def _points(estimate: Estimate | None) -> str:
    if estimate is None:
        return "other episodes"
    low, high = estimate.interval
    return f"{100 * estimate.value:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f})"
