"""Arithmetic tasks with a function to call, for agents of type `multi_turn`."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from turnmill.tasks.arithmetic import OPERATORS, Arithmetic, DemonstratedResponse, answer_at_once, evaluate
from turnmill.tasks.base import Task

CALL = '<tool_call>{{"name": "calculator", "arguments": {{"expression": "{sum}"}}}}</tool_call><|im_end|>'
# Text that verl appends for a tool's result with the chat template of the tiny model.
ANSWER = "\n<usr>{result}<|im_end|><ast>"


class Calculator(Arithmetic):
    """`42*17=?`, to be computed by the function `calculator` and answered with `answer:714`."""

    name: ClassVar[str] = "calculator"
    words = (
        '<tool_call>{"name":', ' "calculator",', ' "arguments":', ' {"expression":', ' "', '"}}</tool_call>',
        "\n", "answer:", "=?", *OPERATORS, *"0123456789",
    )  # fmt: skip

    def demonstrations(self, seed: int, count: int) -> Iterator[tuple[Task, list[DemonstratedResponse]]]:
        """Yield tasks with the responses of a mediocre teacher, as those of `arithmetic`."""
        rng = random.Random(seed)
        for number in range(count):
            task = self._task(f"demonstrations/{seed}", number)
            yield task, _answer_with_call(task, rng) if rng.random() < 0.5 else [answer_at_once(task, rng)]

    def _task(self, stream: str, number: int) -> Task:
        task = super()._task(stream, number)
        return replace(task, messages=({"role": "user", "content": task.messages[0]["content"]},))


def _answer_with_call(task: Task, rng: random.Random) -> list[DemonstratedResponse]:
    question = task.messages[0]["content"].removesuffix("=?")
    if rng.random() < 0.7:
        question = f"{rng.randint(10, 99)}{question[2:]}"
    call = CALL.format(sum=question)
    result = evaluate(question)
    context = call + ANSWER.format(result=result)
    return [DemonstratedResponse("", call), DemonstratedResponse(context, f"answer:{result}")]
