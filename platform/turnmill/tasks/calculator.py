"""Sums that are done with a function, for agents of the type `multi_turn`."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

from turnmill.tasks.arithmetic import OPERATORS, Arithmetic, Stretch, at_once, value
from turnmill.tasks.base import Task

CALL = '<tool_call>{{"name": "calculator", "arguments": {{"expression": "{sum}"}}}}</tool_call><|im_end|>'
# How verl appends a tool's answer with the chat template of the tiny model.
ANSWER = "\n<usr>{result}<|im_end|><ast>"


class Calculator(Arithmetic):
    """`42*17=?`, to be asked of the function `calculator` and answered with `answer:714`."""

    name: ClassVar[str] = "calculator"
    words = (
        '<tool_call>{"name":', ' "calculator",', ' "arguments":', ' {"expression":', ' "', '"}}</tool_call>',
        "\n", "answer:", "=?", *OPERATORS, *"0123456789",
    )  # fmt: skip

    def demonstrations(self, seed: int, count: int) -> Iterator[tuple[Task, list[Stretch]]]:
        """Tasks and what a mediocre teacher says, as for `arithmetic`: a call in half of them, most of these wrong."""
        chance = random.Random(seed)
        for number in range(count):
            task = self._task(f"demonstrations/{seed}", number)
            yield task, _with_call(task, chance) if chance.random() < 0.5 else [at_once(task, chance)]

    def _task(self, stream: str, number: int) -> Task:
        task = super()._task(stream, number)
        return replace(task, messages=({"role": "user", "content": task.messages[0]["content"]},))


def _with_call(task: Task, chance: random.Random) -> list[Stretch]:
    question: Any = task.messages[0]["content"].removesuffix("=?")
    if chance.random() < 0.7:
        question = f"{chance.randint(10, 99)}{question[2:]}"
    call = CALL.format(sum=question)
    result = value(question)
    return [Stretch("", call), Stretch(call + ANSWER.format(result=result), f"answer:{result}")]
