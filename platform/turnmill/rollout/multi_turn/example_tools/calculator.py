"""The function `calculator`, for agents of the type `multi_turn`."""

import re

from verl.tools.function_tool import function_tool

_EXPRESSION = re.compile(r"(-?\d{1,9})([-+*])(-?\d{1,9})")


@function_tool
def calculator(expression: str) -> str:
    """Add, subtract or multiply two numbers.

    Args:
        expression: Two whole numbers with +, - or * between them, for example 42*17.
    """
    match = _EXPRESSION.fullmatch("".join(expression.split()))
    if match is None:
        return "no sum"
    left, right = int(match[1]), int(match[3])
    return str({"+": left + right, "-": left - right, "*": left * right}[match[2]])
