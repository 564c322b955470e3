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


FORGERIES = {
    "ends as if the assertion held": "import os\nfor d in range(3, 9):\n  try: os.write(d, b'end')\n"
    "  except OSError: pass\ngetattr(os, '_' + 'exit')(0)",
    "returns an object that equals everything": "class E:\n  def __eq__(self, o): return True\ndef f(x): return E()",
    "returns a number that equals everything": "class E(int):\n  def __eq__(self, o): return True\n"
    "def f(x): return E()",
    "replaces a built-in function": "def f(x): return 0\ndef abs(x): return 0\nimport builtins\nbuiltins.abs = abs",
    "replaces a module": "import math\nmath.isclose = lambda *_, **__: True\ndef f(x): return 0",
    "unpickles as something else": "import operator\nclass E:\n  def __reduce__(self): return (operator.not_, (0,))\n"
    "def f(x): return E()",
    "reads the assertion from its frames": "import re, sys\ndef f(x):\n  frame = sys._getframe()\n  while frame:\n"
    "    found = re.search(r'f.42.\\D+(\\d{4})', str([*frame.f_locals.values()]))\n"
    "    if found: return int(found[1])\n    frame = frame.f_back",
}
CHECKS = ("assert f(42) == 1764", "assert abs(f(42) - 1764) < 1e-6", "assert math.isclose(f(42), 1764)")


@pytest.mark.parametrize("test", CHECKS)
@pytest.mark.parametrize("forgery", list(FORGERIES))
async def test_a_program_cannot_make_an_assertion_hold_without_its_value(new_dialogue: NewDialogue, forgery, test):
    dialogue = new_dialogue("python_oj", {"public_tests": [test]}, PYTHON_BLOCKED_WORDS="off")

    assert "The above code is incorrect" in await dialogue.say(f"<python>{FORGERIES[forgery]}</python>")
    assert not dialogue.result.done


@pytest.mark.parametrize("test", CHECKS)
async def test_the_right_value_passes_each_of_these_assertions(new_dialogue: NewDialogue, test):
    dialogue = new_dialogue("python_oj", {"public_tests": [test]})

    assert await dialogue.say("<python>def f(x): return x * x</python>") == PASSED


@pytest.mark.parametrize(
    ("source", "assertion"),
    [
        ("def f(n):\n  yield from range(n)", "assert list(f(3)) == [0, 1, 2]"),
        ("def f(n):\n  yield from range(n)", "assert sum(f(3)) < 4"),
        ("def f(n): return {n: {1, 2}, 'x': (None, 1.5, float('inf'))}", "assert f(1)['x'][2] > 5 and 1 in f(1)[1]"),
        ("import collections\ndef f(s): return collections.Counter(s)", "assert f('aab') == {'a': 2, 'b': 1}"),
        ("import decimal\ndef f(s): return decimal.Decimal(s)", "assert round(f('1.25'), 1) < 2, f('1')"),
        ("import numpy\ndef f(n): return numpy.arange(n)", "assert f(3).tolist() == [0, 1, 2]"),
        ("import numpy\ndef f(n): return numpy.arange(n)", "assert len(f(3)) == 3 and max(f(3)) < 3"),
        ("class Solution:\n  def add(self, a, b): return a + b", "assert Solution().add(1, 2) == 3"),
        ("class P:\n  def __init__(self, x): self.x = x\n  def __eq__(self, other): return self.x == other.x\n"
         "def f(x): return P(x)", "assert f(3) == P(3)"),
        ("class Stack(list): pass\ndef f(): return Stack()", "assert isinstance(f(), Stack)"),
        ("def f(x): return x * x", "assert all(f(i) == i * i for i in range(3))"),
        ("def f(x): return x * x", "y = f(3)\nassert y == 9"),
        ("def f(x):\n  raise ValueError(x)", "try:\n  f(1)\n  assert False\nexcept ValueError:\n  pass"),
        ("def sum(xs): return 7", "assert sum([1]) == 7"),
        ("def f(): return None", "assert f() is None and not f()"),
    ],
)  # fmt: skip
async def test_assertions_of_every_kind_pass_for_a_right_program(
    new_dialogue: NewDialogue, source: str, assertion: str
):
    dialogue = new_dialogue("python_oj", {"public_tests": [assertion]})

    assert await dialogue.say(f"<python>{source}</python>") == PASSED
