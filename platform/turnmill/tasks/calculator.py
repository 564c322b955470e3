"""Arithmetic tasks with a function to call, for agents of type `multi_turn`."""

from dataclasses import replace
from typing import ClassVar

from turnmill.tasks.arithmetic import OPERATORS, Arithmetic
from turnmill.tasks.base import Task


class Calculator(Arithmetic):
    """`42*17=?`, to be computed by the function `calculator` and answered with `answer:714`."""

    name: ClassVar[str] = "calculator"
    words = (
        '<tool_call>{"name":', ' "calculator",', ' "arguments":', ' {"expression":', ' "', '"}}</tool_call>',
        "\n", "answer:", "=?", *OPERATORS, *"0123456789",
    )  # fmt: skip

    call: ClassVar[str] = (
        '<tool_call>{{"name": "calculator", "arguments": {{"expression": "{question}"}}}}</tool_call><|im_end|>'
    )
    # As verl appends a tool's result with the chat template of the tiny model.
    observation: ClassVar[str] = "\n<usr>{result}<|im_end|><ast>"

    def _task(self, stream: str, number: int) -> Task:
        task = super()._task(stream, number)
        return replace(task, messages=({"role": "user", "content": task.messages[0]["content"]},))
