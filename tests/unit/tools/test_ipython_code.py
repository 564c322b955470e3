import pytest

from turnmill.sandboxes.base import SandboxResult
from turnmill.testing.tool_calls import Dialogue, ScriptedSandbox, make_tool
from turnmill.tools.ipython_code import MAX_OUTPUT_CHARACTERS, NO_OUTPUT, UNCHANGED
from turnmill.tools.sandboxed.session_result import pack_session_result

CALL = '<tool_call>{"name": "python", "arguments": {"code": "1 + 1"}}</tool_call>'


def cell(stdout: bytes = b"", stderr: bytes = b"", *, ok: bool = True, **report: object) -> SandboxResult:
    return SandboxResult(
        0, stdout, stderr, value=pack_session_result({"ok": ok, "timed_out": False, **report}, {}, {"count": b"1"})
    )


@pytest.mark.parametrize(
    ("action", "source"),
    [
        ("<python>a</python><python>b</python>", "a\nb"),
        ("```python\na\n```", "a"),
        (CALL, "1 + 1"),
        ('<tool_call>{"name": "other", "arguments": {"code": "1"}}</tool_call>', None),
        ('<tool_call>{"name": "python", "arguments": {"code": " "}}</tool_call>', None),
        ('<tool_call>{"name": "python", "arguments": []}</tool_call>', None),
        ("<tool_call>no json</tool_call>", None),
        ("<tool_call>[]</tool_call>", None),
        ("```py\na\n```", None),
        ("text", None),
    ],
)
def test_a_cell_comes_from_tags_fences_or_a_call(action, source):
    assert make_tool("ipython_code").parse(action) == source


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ("<python>x</python>", "\n<output>\nhi\n</output>\n"),
        ("<python>x</python>\n<output>", "\nhi\n</output>\n"),
        ("```python\nx\n```", "\n```output\nhi\n```\n"),
        ("```python\nx\n```\n```output", "\nhi\n```\n"),
        (CALL, "hi"),
    ],
)
async def test_the_output_is_wrapped_in_markup_that_matches_the_action(action, text):
    dialogue = Dialogue(make_tool("ipython_code", ScriptedSandbox(cell(b"hi\n"))))

    assert await dialogue.say(action) == text


async def test_the_observation_reports_how_the_cell_ended():
    dialogue = Dialogue(make_tool("ipython_code", ScriptedSandbox(cell(b"Traceback", ok=False))))

    await dialogue.say("<python>a\nb</python>")

    assert dialogue.result.observation == {
        "obs": "\n<output>\nTraceback\n</output>\n",
        "metrics": {"code_success": False, "code_lines": 2},
        "timeout": False,
    }


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (cell(), NO_OUTPUT),
        (cell(b"out\n", b"careful\n"), "out\n\nWarnings: careful"),
        (cell(b"out\n", b"err\n", ok=False), "out\nStderr: err"),
        (cell(b"out", notice="[Not kept]"), "out\n[Not kept]"),
        (cell(b"out", lost=["x (gone)"]), "out\n[Could not be brought back from an earlier turn: x (gone)]"),
        (cell(b"out", ok=False, timed_out=True), "Execution time out after 10 seconds"),
        (SandboxResult(None, b"out", limit="time"), f"Execution time out after 10 seconds\n{UNCHANGED}"),
        (SandboxResult(None, b"out", limit="memory"), f"out\nExecution stopped at its limit of memory.\n{UNCHANGED}"),
        (SandboxResult(None), f"Execution was killed.\n{UNCHANGED}"),
        (cell(b"x" * (MAX_OUTPUT_CHARACTERS + 1)), "x" * MAX_OUTPUT_CHARACTERS + "\n...[output truncated]..."),
    ],
)
async def test_every_outcome_of_a_cell_is_reported(outcome, text):
    dialogue = Dialogue(make_tool("ipython_code", ScriptedSandbox(outcome)))

    assert await dialogue.say(CALL) == text


async def test_timeouts_are_flagged_by_session_and_by_sandbox():
    outcomes = (cell(ok=False, timed_out=True), SandboxResult(None, limit="time"))
    dialogue = Dialogue(make_tool("ipython_code", ScriptedSandbox(*outcomes)))

    for _ in outcomes:
        await dialogue.say(CALL)
        assert dialogue.result.observation["timeout"] is True


async def test_an_empty_cell_is_not_executed():
    dialogue = Dialogue(make_tool("ipython_code"))

    assert "Error: script must be a non-empty string" in await dialogue.say("<python> </python>")
