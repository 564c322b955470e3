"""Sums, differences and products of two-digit numbers: easy with a tool, too hard for a tiny model without one."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from turnmill.tasks.base import Answer, Task, TaskSource, stable_hash

OPERATORS = "+-*"
STOP_TOKEN = "</python>"
# Observation of the tool `python_code` after an action in XML tags.
OBSERVATION = "\n<result>\n{result}\n</result>\n"
_ANSWER = re.compile(r"answer:(-?\d+)")


@dataclass(frozen=True, slots=True)
class DemonstratedResponse:
    """One response of a demonstration, and its context."""

    context: str
    """Text between the prompt and the response: earlier responses and observations."""

    response: str


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

    def demonstrations(self, seed: int, count: int) -> Iterator[tuple[Task, list[DemonstratedResponse]]]:
        """Yield tasks with the responses of a mediocre teacher, for warm starts.

        In half of the tasks it calls the tool, in seven of ten of these with a wrong number; in the other half it
        answers at once, in three of ten correctly, which a tiny model cannot learn.
        """
        rng = random.Random(seed)
        for number in range(count):
            task = self._task(f"demonstrations/{seed}", number)
            yield task, _answer_with_tool(task, rng) if rng.random() < 0.5 else [answer_at_once(task, rng)]

    def _task(self, stream: str, number: int) -> Task:
        rng = random.Random(stable_hash(self.seed, stream, number))
        question = _draw_question(rng)
        while _is_for_validation(question) != (stream == "validation"):
            question = _draw_question(rng)
        return Task(number, ({"role": "system", "content": f"{question}=?"},), evaluate(question))


def _draw_question(rng: random.Random) -> str:
    return f"{rng.randint(10, 99)}{rng.choice(OPERATORS)}{rng.randint(10, 99)}"


def _is_for_validation(question: str) -> bool:
    """Reserve a tenth of all questions, independent of the seed: no run trains on the validation tasks of another."""
    return stable_hash("validation", question) % 10 == 0


def _answer_with_tool(task: Task, rng: random.Random) -> list[DemonstratedResponse]:
    question = task.messages[0]["content"].removesuffix("=?")
    if rng.random() < 0.7:
        question = f"{rng.randint(10, 99)}{question[2:]}"
    call = f"<python>print({question}){STOP_TOKEN}"
    context = call + OBSERVATION.format(result=evaluate(question))
    return [DemonstratedResponse("", call), DemonstratedResponse(context, f"answer:{evaluate(question)}")]


def answer_at_once(task: Task, rng: random.Random) -> DemonstratedResponse:
    """Answer without a tool."""
    number = task.truth if rng.random() < 0.3 else rng.randint(-89, 9801)
    return DemonstratedResponse("", f"answer:{number}")


def evaluate(question: str) -> int:
    """Evaluate an expression such as `42*17`."""
    left, operator, right = int(question[:2]), question[2], int(question[3:])
    return {"+": left + right, "-": left - right, "*": left * right}[operator]
