"""The function `calculator`, for agents of the type `multi_turn`."""

import re

from verl.tools.function_tool import function_tool

_SUM = re.compile(r"(-?\d{1,9})([-+*])(-?\d{1,9})")


@function_tool
def calculator(expression: str) -> str:
    """Add, subtract or multiply two numbers.

    Args:
        expression: Two whole numbers with +, - or * between them, for example 42*17.
    """
    found = _SUM.fullmatch("".join(expression.split()))
    if found is None:
        return "no sum"
    left, right = int(found[1]), int(found[3])
    return str({"+": left + right, "-": left - right, "*": left * right}[found[2]])
