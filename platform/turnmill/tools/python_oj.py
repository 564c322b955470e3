"""The tool `python_oj`: judges a program by the tests given with the call."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from turnmill.core.errors import ToolFailedError
from turnmill.tools.assertions import split_assertion
from turnmill.tools.base import Tool, ToolCall, ToolContext, ToolResult
from turnmill.tools.code_blocks import encodable, stdin_of
from turnmill.tools.python_code import ProgramResult, PythonProgram, python_blocks
from turnmill.tools.registry import register

PASSED = "All public test cases passed!\n"
_INCORRECT = "The above code is incorrect"


@dataclass(frozen=True, slots=True)
class Case:
    """A program to run, its input and its accepted outputs."""

    source: str
    stdin: bytes
    expected: tuple[str, ...]
    shown_input: object
    shown_expected: object


@register
class PythonOJ(Tool):
    """Runs a program on its public tests, until the first failure."""

    name: ClassVar[str] = "python_oj"

    def __init__(self, context: ToolContext) -> None:
        super().__init__(context)
        self._program = PythonProgram(context)

    def usage(self) -> str:
        """Return one line on how to call it."""
        return "Write a Python program between <python> and </python>; the public tests are run on it."

    def parse(self, action: str) -> str | None:
        """Return the Python blocks."""
        return python_blocks(action)

    async def call(self, call: ToolCall) -> ToolResult:
        """Judge the program; if it passes all tests, the trajectory ends."""
        stdin = stdin_of(call.action, call.extra.get("stdin"))
        tests = _tests(call.extra.get("public_tests"))
        if tests is None:
            return ToolResult("", done=True)
        if isinstance(tests, list):
            failure = await self._failed_assertion(call.parsed, stdin, tests)
        else:
            failure = await self._failed_case(_cases(call.parsed, stdin, tests))
        return ToolResult(PASSED if failure is None else encodable(failure), done=failure is None)

    async def _failed_assertion(self, source: str, stdin: bytes, assertions: Sequence[str]) -> str | None:
        for assertion in assertions:
            failed = await self._run_assertion(source, stdin, assertion)
            if failed is not None:
                return f"{_INCORRECT}. \nFailed test case: {assertion}\nError:{failed.stdout}\n{failed.stderr}"
        return None

    async def _run_assertion(self, source: str, stdin: bytes, assertion: str) -> ProgramResult | None:
        """Return the result of a program for which the assertion does not hold."""
        split = split_assertion(assertion, source)
        if split is None:
            result = await self._program.run(f"{source}\n{assertion}", stdin, prelude=False)
            return result if result.failed or not result.reached_end else None
        result, values = await self._program.evaluate(source, stdin, split.expressions)
        if result.failed:
            return result
        error = await self._program.judge(split.condition, values)
        if error is None:
            return None
        line = source.count("\n") + 2
        place = f'  File "main.py", line {line}, in <module>\n    {assertion}\n'
        return replace(result, stderr=f"Traceback (most recent call last):\n{place}{error}", failed=True)

    async def _failed_case(self, cases: Sequence[Case]) -> str | None:
        for case in cases:
            result = await self._program.run(case.source, case.stdin, prelude=False)
            if result.failed or not any(same_output(result.stdout, expected) for expected in case.expected):
                return _explain(case, result)
        return None


def _tests(given: object) -> list[str] | Mapping[str, object] | None:
    """Return assertions, or inputs with outputs; None if there are no tests."""
    if given is None:
        return None
    try:
        tests = json.loads(given) if isinstance(given, str) else given
    except ValueError as error:
        raise ToolFailedError(f"python_oj: public_tests ({str(given)[:80]!r}) is no JSON: {error}.") from error
    if isinstance(tests, list) and all(isinstance(test, str) for test in tests):
        return tests
    if isinstance(tests, dict):
        inputs, outputs = tests.get("inputs"), tests.get("outputs")
        if isinstance(inputs, list) and isinstance(outputs, list) and len(inputs) == len(outputs):
            return tests
    raise ToolFailedError(
        f"python_oj: public_tests ({str(tests)[:80]}) must be a list of assertions, or an object with `inputs` and "
        "`outputs` of one length and, where a function is to be called, `fn_name`."
    )


def _cases(source: str, stdin: bytes, tests: Mapping[str, object]) -> list[Case]:
    inputs, outputs = tests["inputs"], tests["outputs"]
    assert isinstance(inputs, list)
    assert isinstance(outputs, list)
    pairs = zip(inputs, outputs, strict=True)
    function = tests.get("fn_name")
    if isinstance(function, str) and function:
        return [_function_case(source, stdin, function, given, expected) for given, expected in pairs]
    return [_stdin_case(source, stdin, given, expected) for given, expected in pairs]


def _stdin_case(source: str, stdin: bytes, given: object, expected: object) -> Case:
    text, output = _lines(given), _lines(expected)
    return Case(source, stdin + encodable(text).encode(), (output,), text, output)


def _lines(value: object) -> str:
    if isinstance(value, list):
        return "\n".join(str(line) for line in value if str(line).strip())
    return str(value)


def _function_case(source: str, stdin: bytes, function: str, given: object, expected: object) -> Case:
    owner = "Solution()." if "class Solution" in source else ""
    call = f"{source}\nprint({owner}{function}({', '.join(_arguments(given))}))\n"
    return Case(call, stdin, _printed(expected), given, expected)


def _arguments(given: object) -> list[str]:
    """Return arguments as Python source: those in a list, or in a string as JSON, one per line, or as Python."""
    if isinstance(given, list):
        return [repr(argument) for argument in given]
    if not isinstance(given, str):
        return [repr(given)]
    for texts in ([given], given.splitlines()):
        try:
            return [repr(json.loads(text)) for text in texts]
        except ValueError:
            continue
    return [given]


def _printed(expected: object) -> tuple[str, ...]:
    """Return the accepted outputs: a list may represent itself, a tuple, or its only value."""
    if isinstance(expected, str):
        try:
            value = json.loads(expected)
        except ValueError:
            value = expected
        return (str(value), expected)
    if isinstance(expected, list):
        inner = (str(expected[0]),) if len(expected) == 1 else ()
        return (str(expected), str(tuple(expected)), *inner)
    return (str(expected),)


def same_output(output: str, expected: str) -> bool:
    """Return True if two texts match except for trailing blanks, or are lines of equal numbers."""
    lines, expected_lines = ([line.strip() for line in text.strip().splitlines()] for text in (output, expected))
    if lines == expected_lines:
        return True
    words, expected_words = (" ".join(some).split() for some in (lines, expected_lines))
    if not words or len(words) != len(expected_words) or len(lines) != len(expected_lines):
        return False
    if all(word.lstrip("-").isdigit() for word in (*words, *expected_words)):
        return words == expected_words
    try:
        pairs = [(float(word), float(other)) for word, other in zip(words, expected_words, strict=True)]
    except ValueError:
        return False
    return all(math.isclose(number, other, rel_tol=1e-5, abs_tol=1e-8) for number, other in pairs)


def _explain(case: Case, result: ProgramResult) -> str:
    given = f"Input: {case.shown_input}"
    expected = f"Expected: {case.shown_expected}"
    if not result.failed:
        return f"{_INCORRECT} and got a wrong answer.\n{given}\nGenerated Output: {result.stdout}\n{expected}"
    if "timed out" in result.stderr:
        return f"{_INCORRECT} and got time limit exceeded.\n{result.stderr}\n{given}\n{expected}"
    what = "a syntax error" if "SyntaxError" in result.stderr else "a runtime error"
    return f"{_INCORRECT} and got {what}.\n{given}\n{expected}\n{result.stderr}"
