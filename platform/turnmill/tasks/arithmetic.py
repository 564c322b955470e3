"""Sums, differences and products of two-digit numbers: easy with a tool, too hard for a tiny model without one."""

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from turnmill.tasks.base import Answer, Task, TaskSource, stable_hash

OPERATORS = "+-*"
NUMBERS = range(10, 100)
CALL_SHARE, WRONG_NUMBER_SHARE, KNOWN_SHARE = 0.35, 0.5, 0.3
"""Shares of the teacher's responses: calls of the tool, calls with a random first number, correct answers at once."""

STOP_TOKEN = "</python>"
_ANSWER = re.compile(r"answer:(-?\d+)")


@dataclass(frozen=True, slots=True)
class DemonstratedResponse:
    """One response of a demonstration, and its context."""

    context: str
    """Text between the prompt and the response: earlier responses and observations."""

    response: str
    probabilities: Mapping[str, float] = field(default_factory=dict)
    """Beginnings of responses that the teacher draws from, each with its probability; empty if it had no choice.

    A warm start imitates the distribution in place of the one response drawn: the mean gradient is the same, its noise
    far smaller.
    """


class Arithmetic(TaskSource):
    """`42*17=?`, answered with `answer:714`."""

    name = "arithmetic"
    words = (
        "<python>",
        "print(",
        ")",
        STOP_TOKEN,
        "<result>",
        "</result>",
        "\n",
        "answer:",
        "=?",
        *OPERATORS,
        *"0123456789",
    )
    """Vocabulary of the tiny model's tokenizer."""

    call: ClassVar[str] = f"<python>print({{question}}){STOP_TOKEN}"
    """A call of the tool `python_code`."""

    observation: ClassVar[str] = "\n<result>\n{result}\n</result>\n"
    """Its observation after an action in XML tags."""

    def training(self, number: int) -> Task:
        """Return the n-th task of the training stream."""
        return self._task("training", number)

    def validation(self, number: int) -> Task:
        """Return the n-th task of the validation stream."""
        return self._task("validation", number)

    def reward(self, task: Task, answer: Answer) -> float:
        """Return 1 for the correct number, else 0."""
        found = _ANSWER.search(answer.last)
        return float(found is not None and found[1] == str(task.truth))

    def prediction(self, task: Task, answer: Answer) -> str:
        """Return the number in the answer."""
        found = _ANSWER.search(answer.last)
        return found[1] if found else ""

    def demonstrations(self, seed: int, count: int) -> Iterator[tuple[Task, list[DemonstratedResponse]]]:
        """Yield tasks with the responses of a mediocre teacher, for warm starts.

        It calls the tool in CALL_SHARE of the tasks, in WRONG_NUMBER_SHARE of these with a random first number; in the
        others it answers at once, in KNOWN_SHARE of these correctly, which a tiny model cannot learn.
        """
        rng = random.Random(seed)
        for number in range(count):
            task = self._task(f"demonstrations/{seed}", number)
            calls_tool = rng.random() < CALL_SHARE
            yield task, self._answer_with_tool(task, rng) if calls_tool else [self._answer_at_once(task, rng)]

    def _answer_with_tool(self, task: Task, rng: random.Random) -> list[DemonstratedResponse]:
        question = _question(task)
        if rng.random() < WRONG_NUMBER_SHARE:
            question = f"{_draw_number(rng)}{question[2:]}"
        call, result = self.call.format(question=question), evaluate(question)
        return [
            DemonstratedResponse("", call, self._probabilities(task)),
            DemonstratedResponse(call + self.observation.format(result=result), f"answer:{result}"),
        ]

    def _answer_at_once(self, task: Task, rng: random.Random) -> DemonstratedResponse:
        number = task.truth if rng.random() < KNOWN_SHARE else rng.randint(-89, 9801)
        return DemonstratedResponse("", f"answer:{number}", self._probabilities(task))

    def _probabilities(self, task: Task) -> dict[str, float]:
        """Return the probability of every first response of the teacher, without the numbers of answers at once."""
        question = _question(task)
        chances = dict.fromkeys(map(str, NUMBERS), WRONG_NUMBER_SHARE / len(NUMBERS))
        chances[question[:2]] += 1 - WRONG_NUMBER_SHARE
        calls = {self.call.format(question=f"{first}{question[2:]}"): chance for first, chance in chances.items()}
        return {"answer:": 1 - CALL_SHARE} | {call: CALL_SHARE * chance for call, chance in calls.items()}

    def _task(self, stream: str, number: int) -> Task:
        rng = random.Random(stable_hash(self.seed, stream, number))
        question = _draw_question(rng)
        while _is_for_validation(question) != (stream == "validation"):
            question = _draw_question(rng)
        return Task(number, ({"role": "system", "content": f"{question}=?"},), evaluate(question))


def _draw_question(rng: random.Random) -> str:
    return f"{_draw_number(rng)}{rng.choice(OPERATORS)}{_draw_number(rng)}"


def _draw_number(rng: random.Random) -> int:
    return rng.randint(NUMBERS[0], NUMBERS[-1])


def _is_for_validation(question: str) -> bool:
    """Reserve a tenth of all questions, independent of the seed: no run trains on the validation tasks of another."""
    return stable_hash("validation", question) % 10 == 0


def _question(task: Task) -> str:
    return task.messages[0]["content"].removesuffix("=?")


def evaluate(question: str) -> int:
    """Evaluate an expression such as `42*17`."""
    left, operator, right = int(question[:2]), question[2], int(question[3:])
    return {"+": left + right, "-": left - right, "*": left * right}[operator]
