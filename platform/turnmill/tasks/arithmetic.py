"""Sums, differences and products of two-digit numbers: easy with a tool, out of reach for a tiny model without."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from turnmill.tasks.base import Answer, Task, TaskSource, number_of

OPERATORS = "+-*"
STOP_TOKEN = "</python>"
# What the tool `python_code` answers an action in XML tags with.
OBSERVATION = "\n<result>\n{result}\n</result>\n"
_ANSWER = re.compile(r"answer:(-?\d+)")


@dataclass(frozen=True, slots=True)
class Stretch:
    """What the policy is to say after what it has read."""

    read: str
    """After the prompt: earlier responses and observations."""

    said: str


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
    """Every token of the language, for the tokenizer of a tiny model."""

    def training(self, number: int) -> Task:
        """A task of the training stream."""
        return self._task("training", number)

    def validation(self, number: int) -> Task:
        """A task of the validation stream."""
        return self._task("validation", number)

    def reward(self, task: Task, answer: Answer) -> float:
        """1 for the right number."""
        found = _ANSWER.search(answer.last)
        return float(found is not None and found[1] == str(task.truth))

    def demonstrations(self, seed: int, count: int) -> Iterator[tuple[Task, list[Stretch]]]:
        """Tasks and what a mediocre teacher says: a tool call in half of them, seven in ten with a wrong number; the
        others answer at once, three in ten rightly, which no tiny model learns."""
        chance = random.Random(seed)
        for number in range(count):
            task = self._task(f"demonstrations/{seed}", number)
            yield task, _with_tool(task, chance) if chance.random() < 0.5 else [at_once(task, chance)]

    def _task(self, stream: str, number: int) -> Task:
        chance = random.Random(number_of(self.seed, stream, number))
        question = _draw(chance)
        while _is_for_validation(question) != (stream == "validation"):
            question = _draw(chance)
        return Task(number, ({"role": "system", "content": f"{question}=?"},), value(question))


def _draw(chance: random.Random) -> str:
    return f"{chance.randint(10, 99)}{chance.choice(OPERATORS)}{chance.randint(10, 99)}"


def _is_for_validation(question: str) -> bool:
    """A tenth of all questions, by no seed: no run trains on what another validates with."""
    return number_of("validation", question) % 10 == 0


def _with_tool(task: Task, chance: random.Random) -> list[Stretch]:
    question = task.messages[0]["content"].removesuffix("=?")
    if chance.random() < 0.7:
        question = f"{chance.randint(10, 99)}{question[2:]}"
    call = f"<python>print({question}){STOP_TOKEN}"
    read = call + OBSERVATION.format(result=value(question))
    return [Stretch("", call), Stretch(read, f"answer:{value(question)}")]


def at_once(task: Task, chance: random.Random) -> Stretch:
    """An answer without a tool."""
    said = task.truth if chance.random() < 0.3 else chance.randint(-89, 9801)
    return Stretch("", f"answer:{said}")


def value(question: str) -> int:
    """What `42*17` comes to."""
    left, operator, right = int(question[:2]), question[2], int(question[3:])
    return {"+": left + right, "-": left - right, "*": left * right}[operator]
