import pytest

from turnmill.testing.tool_calls import NewDialogue
from turnmill.tools.ipython_code import NO_OUTPUT, UNCHANGED

pytestmark = pytest.mark.asyncio(loop_scope="session")

DEFINITIONS = """
import collections, dataclasses, enum, functools, math

class Base:
    count = 0
    def name(self):
        return "base"

class Child(Base):
    def name(self):
        Base.count += 1
        return super().name() + " child"

@dataclasses.dataclass
class Point:
    x: int
    y: int = 2

class Colour(enum.Enum):
    RED = 1

Pair = collections.namedtuple("Pair", "a b")

@functools.lru_cache(maxsize=None)
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

def make_counter():
    count = 0
    def add():
        nonlocal count
        count += 1
        return count
    return add, lambda: count

def next_step():
    global step
    step += 1
    return step

step = 0
add, total = make_counter()
child, point, colour, pair = Child(), Point(1), Colour.RED, Pair(1, 2)
numbers = [1, 2]
same_numbers = numbers
ring = []; ring.append(ring)
square = lambda x: x ** power
"""


def text(observation: str) -> str:
    assert observation.startswith("\n<output>\n")
    assert observation.endswith("\n</output>\n")
    return observation.removeprefix("\n<output>\n").removesuffix("\n</output>\n")


async def run(dialogue, source: str) -> str:
    return text(await dialogue.say(f"<python>{source}</python>"))


async def test_the_last_expression_is_shown_under_the_number_of_its_cell(new_dialogue: NewDialogue):
    dialogue = new_dialogue("ipython_code")

    assert await run(dialogue, "x = 41") == NO_OUTPUT
    assert await run(dialogue, "print('p')\nx + 1") == "p\nOut[2]: 42"
    assert await run(dialogue, "_ * 2;") == NO_OUTPUT
    assert await run(dialogue, "None") == NO_OUTPUT
    assert await run(dialogue, "await __import__('asyncio').sleep(0, 'awaited')") == "Out[5]: 'awaited'"


async def test_functions_classes_and_objects_are_kept_between_cells(new_dialogue: NewDialogue):
    dialogue = new_dialogue("ipython_code")
    await run(dialogue, DEFINITIONS)

    for count in (1, 2):
        assert await run(dialogue, "child.name(), Base.count, isinstance(child, Base), type(child) is Child") == (
            f"Out[{4 * count - 2}]: ('base child', {count}, True, True)"
        )
        assert await run(dialogue, "point, colour is Colour.RED, pair, isinstance(pair, Pair), fib(80), math.pi") == (
            f"Out[{4 * count - 1}]: (Point(x=1, y=2), True, Pair(a=1, b=2), True, 23416728348467685, 3.141592653589793)"
        )
        assert await run(dialogue, "add(), total(), next_step(), step") == (
            f"Out[{4 * count}]: ({count}, {count}, {count}, {count})"
        )
        assert await run(
            dialogue, "same_numbers.append(0); numbers is same_numbers, len(numbers), ring[0] is ring"
        ) == (f"Out[{4 * count + 1}]: (True, {2 + count}, True)")


async def test_a_function_sees_variables_of_later_cells(new_dialogue: NewDialogue):
    dialogue = new_dialogue("ipython_code")
    await run(dialogue, DEFINITIONS)
    await run(dialogue, "power = 3")

    assert await run(dialogue, "square(2)") == "Out[3]: 8"


async def test_errors_show_the_lines_of_cells_and_keep_earlier_changes(new_dialogue: NewDialogue):
    dialogue = new_dialogue("ipython_code")
    await run(dialogue, "def fail():\n    raise ValueError('no')")

    assert await run(dialogue, "x = 1\nfail()") == (
        'Traceback (most recent call last):\n  File "<cell 2>", line 2, in <module>\n    fail()\n'
        '  File "<cell 1>", line 2, in fail\nValueError: no'
    )
    assert dialogue.result.observation["metrics"] == {"code_success": False, "code_lines": 2}
    assert await run(dialogue, "x = = 2") == (
        'File "<cell 3>", line 1\n    x = = 2\n        ^\nSyntaxError: invalid syntax'
    )
    assert await run(dialogue, "x") == "Out[4]: 1"


async def test_unpicklable_variables_are_reported_and_missing_in_the_next_cell(new_dialogue: NewDialogue):
    dialogue = new_dialogue("ipython_code")

    observation = await run(
        dialogue, "x = 1\nnumbers = (n for n in [1])\nfile = open('out.txt', 'w'); file.write('kept'); 0"
    )

    assert observation.startswith("Out[1]: 0\n[Not kept for the next turn: file (TextIOWrapper: ")
    assert "; numbers (generator: cannot pickle 'generator' object)]" in observation
    assert "NameError: name 'numbers' is not defined" in await run(dialogue, "numbers")
    assert await run(dialogue, "open('out.txt').read(), x") == "Out[3]: ('kept', 1)"


async def test_a_variable_beyond_the_limit_is_reported_and_the_others_are_kept(new_dialogue: NewDialogue):
    dialogue = new_dialogue("ipython_code", IPYTHON_MAX_STATE_BYTES="1000")

    assert await run(dialogue, "big = 'x' * 5000; small = 1") == (
        f"{NO_OUTPUT}\n[Not kept for the next turn: big (5,027 bytes; a session keeps 1,000)]"
    )
    assert await run(dialogue, "small") == "Out[2]: 1"


async def test_only_parts_that_changed_are_written(new_dialogue: NewDialogue):
    dialogue = new_dialogue("ipython_code")
    await run(dialogue, "a = [1]; b = {'k': 2.5}; c = 'text'\ndef f(): return a")
    await run(dialogue, "1")

    await run(dialogue, "a.append(2); del c")
    change = dialogue.result.change

    assert change is not None
    assert (set(change.written), set(change.removed)) == ({"count", "vars/a"}, {"vars/c"})


async def test_a_cell_that_times_out_keeps_its_earlier_changes(new_dialogue: NewDialogue):
    dialogue = new_dialogue("ipython_code", IPYTHON_TIMEOUT_SECONDS="1")

    assert await run(dialogue, "x = 1\nwhile True: x += 1") == "Execution time out after 1 seconds"
    assert dialogue.result.observation["timeout"] is True
    assert await run(dialogue, "x > 1") == "Out[2]: True"


async def test_a_cell_that_ignores_the_timeout_is_ended_and_the_session_is_unchanged(new_dialogue: NewDialogue):
    dialogue = new_dialogue("ipython_code", IPYTHON_TIMEOUT_SECONDS="0.5")
    await run(dialogue, "x = 1")

    observation = await run(
        dialogue, "import signal, time\nx = 2\nsignal.setitimer(signal.ITIMER_REAL, 0)\ntime.sleep(60)"
    )

    assert observation == f"Execution time out after 0.5 seconds\n{UNCHANGED}"
    assert await run(dialogue, "x") == "Out[2]: 1"


async def test_a_cell_that_ends_the_process_leaves_the_session_unchanged(new_dialogue: NewDialogue):
    dialogue = new_dialogue("ipython_code")
    await run(dialogue, "x = 1")

    assert await run(dialogue, "x = 2\nprint('out', flush=True)\nimport os; os._exit(0)") == f"out\n{UNCHANGED}"
    assert await run(dialogue, "x") == "Out[2]: 1"


async def test_exit_keeps_the_session(new_dialogue: NewDialogue):
    dialogue = new_dialogue("ipython_code")
    await run(dialogue, "x = 2\nexit()")

    assert await run(dialogue, "x") == "Out[2]: 2"


async def test_variables_that_cannot_be_restored_are_reported(new_dialogue: NewDialogue):
    dialogue = new_dialogue("ipython_code")
    await run(
        dialogue, "class Odd(Exception):\n    def __init__(self, a, b): super().__init__(a)\nodd = Odd(1, 2); y = 3"
    )

    observation = await run(dialogue, "y")

    assert observation.startswith("Out[2]: 3\n[Could not be brought back from an earlier turn: ")
    assert "odd (TypeError: " in observation


async def test_a_tampered_variable_is_reported_as_not_restored(new_dialogue: NewDialogue):
    dialogue = new_dialogue("ipython_code")
    await run(dialogue, "x = 1")
    dialogue.state["vars/x"] = b"nonsense"

    assert "Could not be brought back from an earlier turn: x (UnpicklingError" in await run(dialogue, "1")


async def test_arrays_and_their_library_are_kept(new_dialogue: NewDialogue):
    dialogue = new_dialogue("ipython_code")
    await run(dialogue, "import numpy as np; a = np.arange(3)")

    assert await run(dialogue, "np.dot(a, a), a") == "Out[2]: (np.int64(5), array([0, 1, 2]))"
