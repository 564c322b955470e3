"""An agent that does sums with a function, with OpenAI's package."""

import json
import operator
import re
from typing import Any

import openai

OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Computes a sum such as 42*17.",
            "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
        },
    }
]


def calculate(arguments: str) -> str:
    """Return the result of a call, or what is wrong with it."""
    try:
        found = re.fullmatch(r"(-?\d{1,9})([-+*])(-?\d{1,9})", json.loads(arguments)["expression"])
        return str(OPERATORS[found[2]](int(found[1]), int(found[3]))) if found else "no sum"
    except (ValueError, KeyError, TypeError) as error:
        return type(error).__name__


def play(task: dict[str, Any]) -> None:
    """Answer the task; its reward is computed from the last answer."""
    client = openai.OpenAI()
    messages = task["messages"]
    while True:
        completion = client.chat.completions.create(model="policy", messages=messages, tools=TOOLS, max_tokens=32)
        message = completion.choices[0].message
        messages.append(message)
        calls = [call for call in message.tool_calls or [] if call.type == "function"]
        if not calls:
            return
        for call in calls:
            result = calculate(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
