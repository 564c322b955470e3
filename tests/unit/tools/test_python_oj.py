import json
import pickle

import pytest

from turnmill.core.errors import ToolFailedError
from turnmill.sandboxes.base import SandboxResult
from turnmill.testing.tool_calls import Dialogue, ScriptedSandbox, make_tool
from turnmill.tools.python_code import BLOCKED
from turnmill.tools.python_oj import PASSED, same_output
from turnmill.tools.sandboxed.packing import unpack

CODE = "<python>def add(a, b): return a + b</python>"


def printed(text: str) -> SandboxResult:
    return SandboxResult(0, text.encode(), value=b"end")


def computed(value: object) -> SandboxResult:
    return SandboxResult(0, value=pickle.dumps([value]))


HOLDS, FAILS = SandboxResult(0, value=b"holds"), SandboxResult(0, b"", value=b"fails")


def judged(tests: object, *outcomes: SandboxResult) -> tuple[Dialogue, ScriptedSandbox]:
    sandbox = ScriptedSandbox(*outcomes)
    return Dialogue(make_tool("python_oj", sandbox), {"public_tests": tests}), sandbox


def sources(sandbox: ScriptedSandbox) -> list[str]:
    return [unpack(task.program.argument)["source"].decode() for task in sandbox.tasks]


async def test_a_program_without_tests_ends_the_trajectory():
    dialogue = Dialogue(make_tool("python_oj"))

    assert await dialogue.say(CODE) == ""
    assert (dialogue.result.done, dialogue.result.valid) == (True, True)


@pytest.mark.parametrize("as_text", [False, True])
async def test_a_program_passes_if_all_assertions_hold(as_text):
    tests = ["assert add(1, 2) == 3", "assert add(0, 0) == 0"]
    outcomes = (computed(3), HOLDS, computed(0), HOLDS)
    dialogue, sandbox = judged(json.dumps(tests) if as_text else tests, *outcomes)

    assert await dialogue.say(CODE) == PASSED
    assert dialogue.result.done
    parts = [unpack(task.program.argument) for task in sandbox.tasks]
    assert [part["expressions"] for part in parts[::2]] == [b"add(1, 2)", b"add(0, 0)"]
    assert [part["condition"] for part in parts[1::2]] == [b"value_0 == 3", b"value_0 == 0"]
    assert [part["values"] for part in parts[1::2]] == [pickle.dumps([3]), pickle.dumps([0])]


async def test_the_first_assertion_that_fails_is_shown():
    failed = SandboxResult(0, b"out", b"AssertionError", value=b"failed")
    dialogue, _ = judged(["assert add(1, 2) == 3", "assert False", "assert True"], computed(3), HOLDS, failed)

    assert await dialogue.say(CODE) == (
        "The above code is incorrect. \nFailed test case: assert False\nError:out\nAssertionError"
    )
    assert (dialogue.result.done, dialogue.result.valid) == (False, True)


async def test_a_wrong_value_is_shown_as_python_shows_it():
    dialogue, _ = judged(["assert add(1, 2) == 4"], SandboxResult(0, b"out", value=pickle.dumps([3])), FAILS)

    assert await dialogue.say(CODE) == (
        "The above code is incorrect. \nFailed test case: assert add(1, 2) == 4\nError:out\n"
        'Traceback (most recent call last):\n  File "main.py", line 2, in <module>\n    assert add(1, 2) == 4\n'
        "AssertionError\n"
    )


@pytest.mark.parametrize("assertion", ["assert add(1, 2) == 3", "x = add(1, 2)\nassert x == 3"])
async def test_a_program_that_exits_before_an_assertion_fails(assertion: str):
    exited = SandboxResult(0, value=b"exit" if "x =" in assertion else b"")
    dialogue, _ = judged([assertion], exited)

    assert "Failed test case" in await dialogue.say(CODE)


@pytest.mark.feature("verl-tool", "programs judged by tests")
@pytest.mark.parametrize(
    ("given", "expected", "call", "output"),
    [
        ([1, 2], [3], "add(1, 2)", "3"),
        (["a", "b"], ["ab"], "add('a', 'b')", "ab"),
        ("[1, 2]", "[2, 1]", "add([1, 2])", "[2, 1]"),
        ("[1]\n2", "3", "add([1], 2)", "3"),
        ('"a"', '"b"', "add('a')", "b"),
        ("x=1", "x", "add(x=1)", "x"),
        ([True], True, "add(True)", "True"),
        ([[]], [11, 11], "add([])", "[11, 11]"),
        ([[]], [11, 11], "add([])", "(11, 11)"),
    ],
)
async def test_a_function_is_called_with_its_arguments(given, expected, call, output):
    dialogue, sandbox = judged({"inputs": [given], "outputs": [expected], "fn_name": "add"}, printed(output))

    assert await dialogue.say(CODE) == PASSED
    assert sources(sandbox)[0].endswith(f"\nprint({call})\n")


async def test_a_method_of_the_class_solution_is_called_on_an_instance():
    dialogue, sandbox = judged({"inputs": [[1]], "outputs": [1], "fn_name": "solve"}, printed("1"))

    await dialogue.say("<python>class Solution:\n  def solve(self, x): return x</python>")

    assert sources(sandbox)[0].endswith("print(Solution().solve(1))\n")


@pytest.mark.feature("verl-tool", "programs judged by tests")
async def test_inputs_go_to_stdin_and_outputs_are_compared():
    tests = {"inputs": ["1 2\n", ["3", "4"]], "outputs": ["3\n", ["3", "4"]]}
    dialogue, sandbox = judged(tests, printed("3\n"), printed("3 \n4\n"))

    assert await dialogue.say(CODE) == PASSED
    assert [task.stdin for task in sandbox.tasks] == [b"1 2\n", b"3\n4"]


@pytest.mark.parametrize(
    ("outcome", "report"),
    [
        (printed("4\n"), "a wrong answer.\nInput: 1\nGenerated Output: 4\n\nExpected: 3"),
        (
            SandboxResult(None, limit="time"),
            "time limit exceeded.\nExecution timed out after 10 seconds.\n\nInput: 1\nExpected: 3",
        ),
        (
            SandboxResult(0, b"", b"SyntaxError: x", value=b"failed"),
            "a syntax error.\nInput: 1\nExpected: 3\nSyntaxError: x",
        ),
        (
            SandboxResult(0, b"", b"ValueError: x", value=b"failed"),
            "a runtime error.\nInput: 1\nExpected: 3\nValueError: x",
        ),
    ],
)
async def test_a_failure_is_reported_with_its_kind(outcome, report):
    dialogue, _ = judged({"inputs": ["1"], "outputs": ["3"]}, outcome)

    assert await dialogue.say(CODE) == f"The above code is incorrect and got {report}"
    assert not dialogue.result.done


async def test_blocked_words_fail_the_test():
    dialogue, _ = judged({"inputs": ["1"], "outputs": ["3"]})

    assert (await dialogue.say("<python>import socket</python>")).endswith(BLOCKED)


@pytest.mark.parametrize(
    "tests", ["no json", 3, [1, 2], {"inputs": ["1"]}, {"inputs": ["1"], "outputs": []}, {"inputs": 1, "outputs": 1}]
)
async def test_invalid_tests_fail_the_call(tests):
    dialogue, _ = judged(tests)

    with pytest.raises(ToolFailedError, match="public_tests"):
        await dialogue.say(CODE)


@pytest.mark.parametrize(
    ("output", "expected", "same"),
    [
        ("a \n b\n\n", "a\nb", True),
        ("1.0", "1", True),
        ("0.3333333\n2", "0.33333333\n2", True),
        ("0.33", "0.34", False),
        ("1\n2", "1 2", False),
        ("12", "13", False),
        ("nan", "nan", True),
        ("1.5 x", "1.50 x", False),
        ("", "1", False),
        ("", "", True),
    ],
)
def test_outputs_are_compared_by_lines_and_by_numbers(output, expected, same):
    assert same_output(output, expected) is same
