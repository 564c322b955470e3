import json

import pytest

from turnmill.sandboxes.base import SandboxResult
from turnmill.testing.tool_calls import Dialogue, ScriptedSandbox, make_tool
from turnmill.tools.bash_terminal import UNCHANGED, find_forbidden
from turnmill.tools.sandboxed.packing import pack, unpack
from turnmill.tools.sandboxed.session_result import pack_session_result


def transcript(
    text: bytes, before: dict[str, bytes] | None = None, after: dict[str, bytes] | None = None
) -> SandboxResult:
    return SandboxResult(0, text, value=pack_session_result({}, before or {}, after or {}))


@pytest.mark.parametrize(
    ("action", "commands"),
    [
        ("<bash>ls</bash><bash>\npwd\n</bash>", "ls\npwd"),
        ("```bash\nls\n```", "ls"),
        ("```sh\nls\n```", "ls"),
        ("``` terminal\nls\n```", "ls"),
        ("<bash></bash>", ""),
        ("```python\nls\n```", None),
        ("ls", None),
    ],
)
def test_blocks_are_joined_with_newlines(action, commands):
    assert make_tool("bash_terminal").parse(action) == commands


@pytest.mark.parametrize(
    ("action", "observation"),
    [
        ("<bash>ls</bash>", "\n<o>\nT\n</o>\n"),
        ("<bash>ls</bash>\n<o>", "\nT\n</o>\n"),
        ("```bash\nls\n```", "\n```output\nT\n```\n"),
        ("```sh\nls\n``` and more", "\n```output\nT\n```\n"),
        ("```shell\nls\n```", "\n```output\nT\n```\n"),
        ("```terminal\nls\n```\n", "\n```output\nT\n```\n"),
        ("```bash\nls\n```\n```output", "\nT\n```\n"),
        ("<bash>ls</bash></tool_call>", "\n```output\nT\n```\n"),
    ],
)
async def test_the_transcript_is_wrapped_in_markup_that_matches_the_action(action, observation):
    dialogue = Dialogue(make_tool("bash_terminal", ScriptedSandbox(transcript(b"T\n"))))

    assert await dialogue.say(action) == observation
    assert (dialogue.result.done, dialogue.result.valid) == (False, True)


@pytest.mark.parametrize(
    ("commands", "found"),
    [
        ("sudo ls", ["sudo "]),
        ("RM -RF /", ["rm -rf /"]),
        ("echo x > /etc/passwd_", ["passwd"]),
        ("echo x > /etc/hosts", ["> /etc/"]),
        ("chmod 777 f", ["chmod 777"]),
        ("find / -name x -exec ls", ["find / -name x -exec"]),
        ("ls -la", []),
    ],
)
def test_forbidden_commands_are_named(commands, found):
    assert find_forbidden(commands) == found


async def test_a_refused_block_is_answered_in_the_same_markup_and_not_executed():
    dialogue = Dialogue(make_tool("bash_terminal"))

    observation = await dialogue.say("<bash>echo a\nsudo reboot</bash>")

    assert observation == (
        "\n<o>\nExecution blocked: Command contains potentially dangerous operations. "
        "Forbidden commands detected: sudo \n</o>\n"
    )
    assert dialogue.result.valid


async def test_forbidden_commands_can_be_allowed():
    tool = make_tool("bash_terminal", ScriptedSandbox(transcript(b"ran")), BASH_BLOCKED_WORDS="off")

    assert "ran" in await Dialogue(tool).say("<bash>mount</bash>")


async def test_empty_lines_are_skipped_and_a_block_is_one_task():
    sandbox = ScriptedSandbox(transcript(b"T"))
    await Dialogue(make_tool("bash_terminal", sandbox)).say("<bash>a\n\n  \nb</bash>")

    (task,) = sandbox.tasks
    assert json.loads(unpack(task.program.argument)["lines"]) == ["a", "b"]
    assert task.limits.seconds == pytest.approx(2 * 10 + 5)


async def test_only_newlines_end_a_line():
    sandbox = ScriptedSandbox(transcript(b"T"))
    await Dialogue(make_tool("bash_terminal", sandbox)).say("<bash>echo 'a\u2028b\x0cc\x85d'\r\npwd</bash>")

    assert json.loads(unpack(sandbox.tasks[0].program.argument)["lines"]) == ["echo 'a\u2028b\x0cc\x85d'", "pwd"]


async def test_an_empty_block_is_not_executed():
    assert await Dialogue(make_tool("bash_terminal")).say("<bash>\n\n</bash>") == "\n<o>\n\n</o>\n"


async def test_the_result_of_the_shell_updates_the_state():
    before = {"cwd": b"~/a", "exports": b"x"}
    outcome = transcript(b"", before, {"cwd": b"~/b", "file/f": b"new"})
    dialogue = Dialogue(make_tool("bash_terminal", ScriptedSandbox(outcome)))
    dialogue.state = dict(before)

    await dialogue.say("<bash>x</bash>")

    assert dialogue.state == {"cwd": b"~/b", "file/f": b"new"}


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (SandboxResult(None, b"T\n", limit="time"), "Process timed out after 10 seconds"),
        (SandboxResult(None, b"T\n", limit="processes"), "The shell reached its limit of processes."),
        (SandboxResult(None, b"T\n"), "The shell was killed."),
    ],
)
async def test_a_shell_that_is_stopped_leaves_the_state_unchanged(outcome, why):
    dialogue = Dialogue(make_tool("bash_terminal", ScriptedSandbox(outcome)))
    dialogue.state = {"cwd": b"~/a"}

    assert await dialogue.say("<bash>x</bash>") == f"\n<o>\nT\n{why}\n{UNCHANGED}\n</o>\n"
    assert dialogue.state == {"cwd": b"~/a"}


@pytest.mark.parametrize(
    "value",
    [
        b"nonsense",
        b"",
        pack({"report": b"{}", "removed": b"[]", "written": b"cut"}),
        pack({"report": b"{}", "removed": b'["another tool"]', "written": b""}),
        pack({"report": b"{}", "removed": b"{}", "written": b""}),
        pack({"report": b"{}", "removed": b"[]", "written": pack({"surprise": b""})}),
        pack({"report": b"{}", "removed": b"[]", "written": pack({"file/f": b"x" * 40_000_000})}),
        pack({"report": b"[" * 100_000, "removed": b"[]", "written": b""}),
    ],
)
async def test_a_tampered_result_changes_nothing(value):
    dialogue = Dialogue(make_tool("bash_terminal", ScriptedSandbox(SandboxResult(0, b"T", value=value))))

    assert UNCHANGED in await dialogue.say("<bash>x</bash>")
    assert dialogue.result.change is None
