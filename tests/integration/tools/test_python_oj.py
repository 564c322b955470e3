import pytest

from turnmill.testing.tool_calls import NewDialogue
from turnmill.tools.python_oj import PASSED

pytestmark = pytest.mark.asyncio(loop_scope="session")

ADD = "<python>def add(a, b):\n    return a + b</python>"


@pytest.mark.feature("verl-tool", "programs judged by tests")
@pytest.mark.parametrize(
    "tests",
    [
        ["assert add(1, 2) == 3", "assert add('a', 'b') == 'ab'"],
        '["assert add(1, 2) == 3"]',
        {"inputs": [[1, 2], ["a", "b"], [[1], [2]]], "outputs": [[3], ["ab"], [1, 2]], "fn_name": "add"},
        '{"inputs": ["1\\n2"], "outputs": ["3"], "fn_name": "add"}',
    ],
)
async def test_a_right_function_passes(new_dialogue: NewDialogue, tests):
    dialogue = new_dialogue("python_oj", {"public_tests": tests})

    assert await dialogue.say(ADD) == PASSED
    assert dialogue.result.done


async def test_a_right_program_passes(new_dialogue: NewDialogue):
    dialogue = new_dialogue("python_oj", {"public_tests": {"inputs": ["2 3\n", "1 1"], "outputs": ["0.666667", "1"]}})

    assert await dialogue.say("<python>a, b = map(int, input().split())\nprint(a / b)</python>") == PASSED


@pytest.mark.parametrize(
    ("source", "report"),
    [
        ("print(4)", "a wrong answer.\nInput: 1\nGenerated Output: 4\n\nExpected: 3"),
        ("int('x')", "a runtime error."),
        ("x ==", "a syntax error."),
        ("while True: pass", "time limit exceeded.\nExecution timed out after 1 seconds."),
    ],
)
async def test_a_wrong_program_is_reported_with_the_reason(new_dialogue: NewDialogue, source, report):
    tests = {"inputs": ["1"], "outputs": ["3"]}
    dialogue = new_dialogue("python_oj", {"public_tests": tests}, PYTHON_TIMEOUT_SECONDS="1")

    observation = await dialogue.say(f"<python>{source}</python>")

    assert observation.startswith(f"The above code is incorrect and got {report}")
    assert not dialogue.result.done


@pytest.mark.parametrize("escape", ["exit()", "raise SystemExit", "import os; getattr(os, '_' + 'exit')(0)"])
async def test_a_program_that_exits_before_the_assertion_fails(new_dialogue: NewDialogue, escape):
    dialogue = new_dialogue("python_oj", {"public_tests": ["assert add(1, 2) == 4"]})

    assert "Failed test case: assert add(1, 2) == 4" in await dialogue.say(f"<python>{escape}</python>")
