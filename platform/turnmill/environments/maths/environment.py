"""Problems with one right answer, from a data set or from the few that come along."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from turnmill.core.errors import SettingsError
from turnmill.core.lookup import suggestion
from turnmill.environments.base import Environment, EnvironmentOptions, StepResult
from turnmill.environments.registry import register
from turnmill.tasks.dataset import DrawnRows
from turnmill.tasks.mathematics import is_same, last_number

SOLVED_REWARD = 10.0
WRONG_REWARD = -0.1
NO_ANSWER = ""
"""The action of a response without an answer; always wrong."""

_PROBLEMS = Path(__file__).parent / "problems"
_MAX_ANSWER_CHARACTERS = 2_000
_BOXED = re.compile(r"\\boxed\{(.*)\}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _ProblemSet:
    """How a data set is read and its answers are judged."""

    question_key: str
    answer_key: str
    own_problems: str
    """File of those that come along."""

    is_answer: Callable[[str], bool]
    is_right: Callable[[str, str], bool]


def _same_number(said: str, truth: str) -> bool:
    number = last_number(said)
    return number is not None and number == last_number(truth.rpartition("####")[2])


def _same_expression(said: str, truth: str) -> bool:
    boxed = _BOXED.search(truth)
    return is_same(said, boxed[1] if boxed else truth)


def _has_number(text: str) -> bool:
    return last_number(text) is not None


def _expressions(question_key: str, answer_key: str = "answer") -> _ProblemSet:
    return _ProblemSet(question_key, answer_key, "expressions.jsonl", lambda text: bool(text), _same_expression)


SETS = {
    "gsm8k": _ProblemSet("question", "answer", "numbers.jsonl", _has_number, _same_number),
    "math500": _expressions("problem"),
    "amc23": _expressions("question"),
    "aime24": _expressions("problem", "solution"),
    "aime25": _expressions("problem"),
    "minervamath": _expressions("question"),
}
"""Tasks, named like the data sets whose columns they know."""


class MathsOptions(EnvironmentOptions):
    """Where the problems are."""

    path: str | None = None
    """File of problems, `.jsonl` or `.parquet`; left out, a few that come along, for trials."""

    validation_path: str | None = None
    """File of the problems that validations pose; left out, they pose those of `path`."""

    question_key: str | None = None
    """Column of the problem, where it is not the data set's own."""

    answer_key: str | None = None
    """Column of the answer, where it is not the data set's own."""

    max_steps: int = Field(default=64, ge=1)
    """Answers after which an episode ends."""


@register
class Maths(Environment):
    """One problem: the agent answers until the answer is right."""

    name: ClassVar[str] = "maths"
    Settings: ClassVar[type[EnvironmentOptions]] = MathsOptions
    actions = ()
    default_action = NO_ANSWER

    def __init__(self, task: str | None, max_turns: int, options: MathsOptions) -> None:
        task = task or "gsm8k"
        super().__init__(task, max_turns, options)
        if task not in SETS:
            raise SettingsError(f"environment.task: maths has no task {task!r}. {suggestion(task, [*SETS])}")
        self._set = SETS[task]
        self._rows, self._keys = _read(self._set, options)
        self._truth = ""
        self._num_steps = 0

    def reset(self, seed: int) -> str:
        """Pose the problem that a seed stands for."""
        row = self._rows.draw(seed)
        question, self._truth = (str(row[key]) for key in self._keys)
        self._num_steps = 0
        return question

    def step(self, action: str) -> StepResult:
        """Judge an answer."""
        right = action != NO_ANSWER and self._set.is_right(action, self._truth)
        self._num_steps += 1
        return StepResult(
            "Correct!" if right else "Incorrect. Please think again.",
            SOLVED_REWARD if right else WRONG_REWARD,
            terminated=right,
            truncated=not right and self._num_steps >= self.options.max_steps,
            info={"success": float(right), "action_is_valid": float(action != NO_ANSWER)},
        )

    def instruction_prompt(self) -> str:
        """Ask for the answer alone."""
        return (
            "You solve a mathematical problem. Think it through, then give the answer alone, as a number or an "
            "expression. Where you are told that it is wrong, think again."
        )

    def match_action(self, answer: str) -> str | None:
        """Any text with what the data set takes for an answer: a number for gsm8k."""
        answer = answer.strip()[:_MAX_ANSWER_CHARACTERS]
        return answer if self._set.is_answer(answer) else None


def _read(problems: _ProblemSet, options: MathsOptions) -> tuple[DrawnRows, tuple[str, str]]:
    keys = (options.question_key or problems.question_key, options.answer_key or problems.answer_key)
    drawn = DrawnRows.read(options.path, options.validation_path, own=_PROBLEMS / problems.own_problems)
    if options.path is None:
        keys = ("question", "answer") if "question" in drawn.training[0] else ("problem", "answer")
    for file, rows in drawn.by_option().items():
        for key, option in zip(keys, ("questionKey", "answerKey"), strict=True):
            if missing := next((number for number, row in enumerate(rows, 1) if key not in row), None):
                raise SettingsError(
                    f"environment.options.{option}: row {missing} of {file} has no column {key!r}. "
                    f"Its columns are {', '.join(rows[missing - 1])}: name the right one."
                )
    return drawn, keys
