"""Mathematical problems with one correct answer, from a data set or from a small built-in sample."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from turnmill.core.errors import SettingsError
from turnmill.environments.base import Environment, EnvironmentOptions, StepResult
from turnmill.environments.registry import register
from turnmill.tasks.dataset import SeededRows
from turnmill.tasks.mathematics import is_equivalent, last_number

SOLVED_REWARD = 10.0
WRONG_REWARD = -0.1
NO_ANSWER = ""
"""Action of a response without an answer; always incorrect."""

_PROBLEMS = Path(__file__).parent / "problems"
_MAX_ANSWER_CHARACTERS = 2_000
_BOXED = re.compile(r"\\boxed\{(.*)\}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _ProblemSet:
    """Columns of a data set, and comparison of its answers."""

    question_key: str
    answer_key: str
    sample_file: str
    """File with the built-in sample."""

    is_answer: Callable[[str], bool]
    is_correct: Callable[[str, str], bool]


def _is_same_number(answer: str, truth: str) -> bool:
    number = last_number(answer)
    return number is not None and number == last_number(truth.rpartition("####")[2])


def _is_same_expression(answer: str, truth: str) -> bool:
    boxed = _BOXED.search(truth)
    return is_equivalent(answer, boxed[1] if boxed else truth)


def _has_number(text: str) -> bool:
    return last_number(text) is not None


def _expressions(question_key: str, answer_key: str = "answer") -> _ProblemSet:
    return _ProblemSet(question_key, answer_key, "expressions.jsonl", lambda text: bool(text), _is_same_expression)


PROBLEM_SETS = {
    "gsm8k": _ProblemSet("question", "answer", "numbers.jsonl", _has_number, _is_same_number),
    "math500": _expressions("problem"),
    "amc23": _expressions("question"),
    "aime24": _expressions("problem", "solution"),
    "aime25": _expressions("problem"),
    "minervamath": _expressions("question"),
}
"""Tasks, named after the data sets whose columns they read."""


class MathsOptions(EnvironmentOptions):
    """Files and columns of the problems, and length of episodes."""

    path: str | None = None
    """File of problems, `.jsonl` or `.parquet`; if omitted, a small built-in sample, for trials."""

    validation_path: str | None = None
    """File of problems for validations; if omitted, that of `path`."""

    question_key: str | None = None
    """Column of the problem; if omitted, the data set's own."""

    answer_key: str | None = None
    """Column of the answer; if omitted, the data set's own."""

    max_steps: int = Field(default=64, ge=1)
    """Answers after which an episode ends."""


@register
class Maths(Environment):
    """Mathematical problems: the agent answers one until its answer is correct."""

    name: ClassVar[str] = "maths"
    tasks = tuple(PROBLEM_SETS)
    Settings: ClassVar[type[EnvironmentOptions]] = MathsOptions
    actions = ()
    default_action = NO_ANSWER

    def __init__(self, task: str | None, max_turns: int, options: MathsOptions) -> None:
        task = task or "gsm8k"
        super().__init__(task, max_turns, options)
        self._set = PROBLEM_SETS[task]
        self._rows, self._keys = _read(self._set, options)
        self._truth = ""
        self._num_steps = 0

    def reset(self, seed: int) -> str:
        """Return the problem that the seed selects."""
        row = self._rows.draw(seed)
        question, self._truth = (str(row[key]) for key in self._keys)
        self._num_steps = 0
        return question

    def step(self, action: str) -> StepResult:
        """Compare an answer with the correct one."""
        correct = action != NO_ANSWER and self._set.is_correct(action, self._truth)
        self._num_steps += 1
        return StepResult(
            "Correct!" if correct else "Incorrect. Please think again.",
            SOLVED_REWARD if correct else WRONG_REWARD,
            terminated=correct,
            truncated=not correct and self._num_steps >= self.options.max_steps,
            info={"success": float(correct), "action_is_valid": float(action != NO_ANSWER)},
        )

    def instruction_prompt(self) -> str:
        """Return the prompt that asks for the answer alone."""
        return (
            "You solve a mathematical problem. Think it through, then give the answer alone, as a number or an "
            "expression. Where you are told that it is wrong, think again."
        )

    def match_action(self, answer: str) -> str | None:
        """Return any text that contains an answer as the data set has them: a number for gsm8k."""
        answer = answer.strip()[:_MAX_ANSWER_CHARACTERS]
        return answer if self._set.is_answer(answer) else None


def _read(problems: _ProblemSet, options: MathsOptions) -> tuple[SeededRows, tuple[str, str]]:
    keys = (options.question_key or problems.question_key, options.answer_key or problems.answer_key)
    found = SeededRows.read(options.path, options.validation_path, sample=_PROBLEMS / problems.sample_file)
    if options.path is None:
        keys = ("question", "answer") if "question" in found.training[0] else ("problem", "answer")
    for file, rows in found.by_option().items():
        for key, option in zip(keys, ("questionKey", "answerKey"), strict=True):
            if missing := next((number for number, row in enumerate(rows, 1) if key not in row), None):
                raise SettingsError(
                    f"environment.options.{option}: row {missing} of {file} has no column {key!r}. "
                    f"Its columns are {', '.join(rows[missing - 1])}: name one of them."
                )
    return found, keys
