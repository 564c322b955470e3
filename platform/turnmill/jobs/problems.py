"""Problems of a job file, and the error that reports all of them at once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from turnmill.core.errors import SettingsError

SHOWN_CHARACTERS = 60


class _Missing:
    def __repr__(self) -> str:
        return ""


MISSING = _Missing()


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: its path, its value, the rule that it breaks and the way out."""

    path: str
    value: object
    rule: str
    way_out: str
    origin: str | None = None

    def __str__(self) -> str:
        """Format as `spec.agent.maxTurns: 0 must be at least 1. Try 1. (line 7)`."""
        place = f"{self.path}: " if self.path else ""
        origin = f" ({self.origin})" if self.origin else ""
        return f"{place}{f'{show(self.value)} {self.rule}'.strip()}. {self.way_out}{origin}"


class JobError(SettingsError):
    """A job has errors; `problems` lists all of them."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)

    def __reduce__(self) -> tuple[type["JobError"], tuple[tuple[Problem, ...]]]:
        """Keep `problems` on the way between processes; exceptions pickle their `args` alone."""
        return type(self), (self.problems,)


def problems_of(error: SettingsError) -> Iterator[Problem]:
    """Yield one problem per line of an error, such as `environment.task: is unknown. Choose another one.`"""
    for line in str(error).splitlines():
        place, _, sentence = line.partition(": ")
        rule, _, way_out = sentence.partition(". ")
        yield Problem(f"spec.{place}", MISSING, rule.removesuffix("."), way_out)


def show(value: object) -> str:
    """Format a value as in a YAML file, truncated if it is long."""
    if value is MISSING:
        return ""
    if value is None or isinstance(value, bool):
        text = {None: "null", True: "true", False: "false"}[value]
    else:
        text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"
