import pytest

from turnmill.testing.tool_calls import NewDialogue

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("print('hi')", "hi"),
        ("print(sqrt(16), Counter('aab').most_common(1), datetime.datetime(2020, 1, 2).year)", "4.0 [('a', 2)] 2020"),
        ("from __future__ import annotations\nprint(__name__, __file__)", "__main__ main.py"),
        ("import os; print(os.listdir('.'))", "[]"),
        ("exit('bye')", "bye"),
        ("print('in thread') if 0 else None\nimport concurrent.futures as c\n"
         "print(list(c.ThreadPoolExecutor(2).map(abs, [-1, -2])))", "[1, 2]"),
        ("import dataclasses, pickle\n@dataclasses.dataclass\nclass P:\n  x: int\n"
         "print(pickle.loads(pickle.dumps(P(3))))", "P(x=3)"),
    ],
)  # fmt: skip
async def test_a_program_runs_as_main_with_the_names_of_the_standard_library(new_dialogue: NewDialogue, source, text):
    assert await new_dialogue("python_code").say(f"<python>{source}</python>") == f"\n<result>\n{text}\n</result>\n"


async def test_errors_name_the_lines_of_the_program(new_dialogue: NewDialogue):
    observation = await new_dialogue("python_code").say("<python>def f():\n    return 1 / 0\n\nf()</python>")

    assert observation == (
        "\n<result>\nTraceback (most recent call last):\n"
        '  File "main.py", line 4, in <module>\n    f()\n'
        '  File "main.py", line 2, in f\n    return 1 / 0\n           ~~^~~\n'
        "ZeroDivisionError: division by zero\n</result>\n"
    )


async def test_a_syntax_error_names_its_line(new_dialogue: NewDialogue):
    observation = await new_dialogue("python_code").say("<python>x = 1\nx = = 2</python>")

    assert (
        observation
        == '\n<result>\nFile "main.py", line 2\n    x = = 2\n        ^\nSyntaxError: invalid syntax\n</result>\n'
    )


@pytest.mark.feature("verl-tool", "input of a Python program")
async def test_stdin_reaches_the_program(new_dialogue: NewDialogue):
    dialogue = new_dialogue("python_code", {"stdin": "from the call"})

    assert "from the call" in await dialogue.say("<python>print(input())</python>")
    assert "of the action" in await dialogue.say("<python>print(input())</python>\n```input\nof the action\n```")


@pytest.mark.feature("verl-tool", "limits of Python")
async def test_a_program_beyond_the_timeout_is_ended_and_its_output_is_kept(new_dialogue: NewDialogue):
    dialogue = new_dialogue("python_code", PYTHON_TIMEOUT_SECONDS="1")

    observation = await dialogue.say("<python>print('begun', flush=True)\nwhile True: pass</python>")

    assert observation == "\n<result>\nbegun\n\nExecution timed out after 1 seconds.\n</result>\n"


async def test_a_program_has_no_state_of_earlier_programs(new_dialogue: NewDialogue):
    dialogue = new_dialogue("python_code")
    await dialogue.say("<python>x = 1\nopen('f', 'w').write('x')\nimport builtins; builtins.y = 2</python>")

    observation = await dialogue.say(
        "<python>import os\nprint('x' in globals(), os.path.exists('f'), 'y' in dir())</python>"
    )

    assert observation == "\n<result>\nFalse False False\n</result>\n"


@pytest.mark.parametrize("source", ["(" * 1_000, "x = " + "-" * 100_000 + "1", "\0", "9" * 5000, "[" * 300 + "]" * 300])
async def test_source_that_the_compiler_rejects_is_an_observation(new_dialogue: NewDialogue, source):
    observation = await new_dialogue("python_code").say(f"<python>{source}</python>")

    assert "Error" in observation


@pytest.mark.feature("verl-tool", "limits of Python")
@pytest.mark.parametrize(("mib", "text"), [(1024, "Cannot allocate memory"), (4096, "\n<result>\nreserved\n")])
async def test_a_program_may_have_the_four_gibibytes_of_verl_tool(new_dialogue: NewDialogue, mib: int, text: str):
    # Reserved and never written to, so it takes no memory of the machine.
    program = "import mmap\nmemory = mmap.mmap(-1, 3 * 2**30, flags=mmap.MAP_PRIVATE)\nprint('reserved')"

    observation = await new_dialogue("python_code", PYTHON_MEMORY_MIB=str(mib)).say(f"<python>{program}</python>")

    assert text in observation
