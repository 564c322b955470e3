import pytest

from turnmill.sandboxes.base import SandboxResult
from turnmill.testing.tool_calls import Dialogue, ScriptedSandbox, make_tool
from turnmill.tools.python_code import BLOCKED, MAX_OBSERVATION_CHARACTERS
from turnmill.tools.sandboxed.packing import unpack

ENDED = b"end"


def program(stdout: bytes = b"", stderr: bytes = b"", **more: object) -> SandboxResult:
    return SandboxResult(0, stdout, stderr, value=ENDED, **more)  # type: ignore[arg-type]


@pytest.mark.feature("verl-tool", "Python between tags or in a fence")
@pytest.mark.parametrize(
    ("action", "source"),
    [
        ("<python>\na = 1\n</python> then <python>b</python>", "a = 1\nb"),
        ("```python\na\n``` and ```\npython\nb\n```", "a\nb"),
        ("```py\na\n```", "a"),
        ("<python>a</python> ```python\nb\n```", "a"),
        ("<python></python>", ""),
        ("plain text", None),
        ("<python>unclosed", None),
        ("```bash\nls\n```", None),
    ],
)
def test_all_blocks_with_the_markup_of_the_first_one_form_the_program(action, source):
    assert make_tool("python_code").parse(action) == source


@pytest.mark.feature("verl-tool", "Python between tags or in a fence")
@pytest.mark.parametrize(
    ("action", "observation"),
    [
        ("<python>x</python>", "\n<result>\nhi\n</result>\n"),
        ("<python>x</python>\n<result> \n", "\nhi\n</result>\n"),
        ("```python\nx\n```", "\n```result\nhi\n```\n"),
        ("```python\nx\n```\n```output", "\nhi\n```\n"),
        ("```py\nx\n```", "\n<result>\nhi\n</result>\n"),
        ("<python>x</python></tool_call>", "\n<tool_response>\n```result\nhi\n```\n</tool_response>\n"),
    ],
)
async def test_the_observation_is_wrapped_in_markup_that_matches_the_action(action, observation):
    dialogue = Dialogue(make_tool("python_code", ScriptedSandbox(program(b"hi\n"))))

    assert await dialogue.say(action) == observation


async def test_the_example_of_the_docs_works():
    dialogue = Dialogue(make_tool("python_code", ScriptedSandbox(program(b"Hello from Python!\nHello again!\n"))))

    observation = await dialogue.say(
        "```<python>\nprint('Hello from Python!')</python> ... <python>print('Hello again!')</python>``` ..."
    )

    assert observation == "\n<result>\nHello from Python!\nHello again!\n</result>\n"
    assert not dialogue.result.done
    assert dialogue.result.valid


async def test_stderr_follows_stdout_and_both_are_stripped_and_cut():
    outcomes = (program(b"out\n", b"err\n"), program(b"x" * (MAX_OBSERVATION_CHARACTERS + 10)))
    dialogue = Dialogue(make_tool("python_code", ScriptedSandbox(*outcomes)))

    assert await dialogue.say("<python>a</python>") == "\n<result>\nout\n\nerr\n</result>\n"
    assert (await dialogue.say("<python>a</python>")).count("x") == MAX_OBSERVATION_CHARACTERS


async def test_a_timeout_is_reported_after_the_output():
    outcome = SandboxResult(None, b"begun\n", limit="time")
    dialogue = Dialogue(make_tool("python_code", ScriptedSandbox(outcome)))

    observation = await dialogue.say("<python>a</python>")

    assert observation == "\n<result>\nbegun\n\nExecution timed out after 10 seconds.\n</result>\n"
    assert dialogue.result.valid


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (SandboxResult(None, limit="memory"), "Execution stopped at its limit of memory."),
        (SandboxResult(None), "Execution was killed."),
        (SandboxResult(7), "Execution ended with code 7."),
        (SandboxResult(0), ""),
    ],
)
async def test_every_other_outcome_is_reported(outcome, text):
    dialogue = Dialogue(make_tool("python_code", ScriptedSandbox(outcome)))

    assert await dialogue.say("<python>a</python>") == f"\n<result>\n{text}\n</result>\n"


@pytest.mark.feature("verl-tool", "limits of Python")
@pytest.mark.parametrize(
    "line",
    [
        *(f"import {module}" for module in ("subprocess", "multiprocessing", "threading", "socket", "psutil")),
        "from resource import *",
        "from ctypes import CDLL",
        *(f"os.{name}" for name in ("system('x')", "popen", "spawnl", "fork()", "execv", "_exit(0)", "kill(1, 9)")),
        "sys.exit()",
    ],
)
async def test_blocked_words_are_refused_without_execution_as_a_valid_action(line):
    dialogue = Dialogue(make_tool("python_code"))

    assert await dialogue.say(f"<python>{line}</python>") == f"\n<result>\n{BLOCKED}\n</result>\n"
    assert dialogue.result.valid


async def test_blocked_words_can_be_allowed():
    sandbox = ScriptedSandbox(program(b"ran"))
    dialogue = Dialogue(make_tool("python_code", sandbox, PYTHON_BLOCKED_WORDS="off"))

    assert "ran" in await dialogue.say("<python>import socket</python>")


@pytest.mark.feature("verl-tool", "input of a Python program")
@pytest.mark.parametrize(
    ("action", "extra", "stdin"),
    [
        ("<python>x</python>", {"stdin": "given"}, b"given"),
        ("<python>x</python>\n```input\n 1 2 \n```", {"stdin": "given"}, b"1 2"),
        ("<python>x</python>", {"stdin": None}, b""),
        ("<python>x</python>", {"stdin": 3}, b""),
    ],
)
async def test_stdin_comes_from_the_action_or_else_from_the_call(action, extra, stdin):
    sandbox = ScriptedSandbox(program())
    await Dialogue(make_tool("python_code", sandbox), extra).say(action)

    assert sandbox.tasks[0].stdin == stdin


async def test_settings_limit_time_and_memory():
    sandbox = ScriptedSandbox(program())
    tool = make_tool("python_code", sandbox, PYTHON_TIMEOUT_SECONDS="3", PYTHON_MEMORY_MIB="256")
    await Dialogue(tool).say("<python>x</python>")

    limits = sandbox.tasks[0].limits
    assert (limits.seconds, limits.memory_bytes, limits.network) == (3, 256 * 1024**2, False)


async def test_a_lone_surrogate_in_the_source_is_replaced():
    sandbox = ScriptedSandbox(program())
    await Dialogue(make_tool("python_code", sandbox)).say("<python>x = '\ud800'</python>")

    assert unpack(sandbox.tasks[0].program.argument)["source"] == b"x = '?'"
