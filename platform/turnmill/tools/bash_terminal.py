"""The tool `bash_terminal`: a shell whose working directory, exports, functions and files persist between turns."""

import json
from collections.abc import Sequence
from typing import ClassVar

from turnmill.sandboxes.base import MIB, Function, Limits, SandboxResult, SandboxTask
from turnmill.tools import settings
from turnmill.tools.base import Tool, ToolCall, ToolContext, ToolResult
from turnmill.tools.code_blocks import encodable, fenced, fences_are_even, find_all, tagged
from turnmill.tools.registry import register
from turnmill.tools.sandboxed.packing import pack
from turnmill.tools.sessions import read_session_result

BLOCKED = (
    "Execution blocked: Command contains potentially dangerous operations. Forbidden commands detected: {commands}"
)
UNCHANGED = "[The shell is as it was before this block.]"
_FORBIDDEN_WORDS = (
    "rm -rf /", "dd if=", "mkfs", "fdisk", "mount", "umount", "passwd", "su ", "sudo ", "chroot", "systemctl",
    "service", "iptables", "ufw", "firewall-cmd", "nc ", "ncat ", "telnet ", "ssh ", "scp ", "rsync ", "curl http",
    "wget http", "lynx", "w3m", "crontab", "batch", "kill -9", "killall", "pkill ", "> /dev/", "< /dev/", "mknod",
    "losetup",
)  # fmt: skip
_FORBIDDEN_PATTERNS = (
    r"rm\s+.*-rf\s+/", r">\s*/etc/", r">\s*/bin/", r">\s*/usr/", r">\s*/var/", r"chmod\s+777", r"find\s+/.*-exec",
    r"eval\s+.*[;&|]", r"source\s+/", r"\.\s+/",
)  # fmt: skip
_GRACE_SECONDS = 5.0
_STATE_BYTES = MIB
"""Maximum size of exports and functions."""


def find_forbidden(commands: str) -> Sequence[str]:
    """Return the first forbidden word or match of a pattern; isolation does not depend on this."""
    lowered = commands.lower()
    for word in _FORBIDDEN_WORDS:
        if word in lowered:
            return [word]
    return next((found for pattern in _FORBIDDEN_PATTERNS if (found := find_all(pattern, lowered))), [])


@register
class BashTerminal(Tool):
    """Runs a block of lines, each in a bash of its own, and shows them like a terminal."""

    name: ClassVar[str] = "bash_terminal"
    stateful: ClassVar[bool] = True
    requires: ClassVar[tuple[str, ...]] = ("bash",)

    def __init__(self, context: ToolContext) -> None:
        super().__init__(context)
        values = context.settings
        self._seconds = settings.number(values, "BASH_TIMEOUT_SECONDS", 10, least=0.1)
        self._block_seconds = settings.number(values, "BASH_BLOCK_TIMEOUT_SECONDS", 120, least=0.1)
        self._characters = settings.count(values, "BASH_MAX_OUTPUT_CHARACTERS", 100_000, least=100)
        self._home_bytes = settings.state_bytes(values, "BASH_MAX_HOME_BYTES", 16 * MIB)
        self._home_files = settings.count(values, "BASH_MAX_HOME_FILES", 1000)
        self._memory_bytes = settings.count(values, "BASH_MEMORY_MIB", 1024, least=64) * MIB
        self._refuses_words = settings.switch(values, "BASH_BLOCKED_WORDS", True)
        self._joins_lines = settings.switch(values, "BASH_JOIN_LINES", False)

    def usage(self) -> str:
        """Return one line on how to call it."""
        return "Write shell commands between <bash> and </bash>; folder, exported variables and files stay."

    def parse(self, action: str) -> str | None:
        """Return the blocks in the first format that the action contains."""
        gap = r"\s*"
        blocks = (
            tagged(action, "bash") or fenced(action, "bash|sh|shell", gap=gap) or fenced(action, "terminal", gap=gap)
        )
        return "\n".join(blocks) if blocks else None

    async def call(self, call: ToolCall) -> ToolResult:
        """Run the block and return the change of state."""
        refused = find_forbidden(call.parsed) if self._refuses_words else []
        if refused:
            return ToolResult(_wrap(call.action, BLOCKED.format(commands=", ".join(refused))))
        commands = encodable(call.parsed).replace("\0", "")
        lines = [line for line in commands.replace("\r\n", "\n").split("\n") if line.strip() or self._joins_lines]
        if not commands.strip():
            return ToolResult(_wrap(call.action, ""))
        seconds = min(self._block_seconds, len(lines) * self._seconds)
        result = await self.context.sandbox.run(self._task(lines, call, seconds))
        max_bytes = self._home_bytes + 128 * self._home_files + _STATE_BYTES
        session = read_session_result(result.value, is_part=_is_state_part, max_bytes=max_bytes)
        text = result.stdout.decode("utf-8", "replace")
        if session is None:
            text += _describe_failure(result, seconds)
        return ToolResult(_wrap(call.action, text.strip(" \n")), change=session.change if session else None)

    def _task(self, lines: list[str], call: ToolCall, seconds: float) -> SandboxTask:
        limits = {
            "seconds": self._seconds,
            "characters": self._characters,
            "home_bytes": self._home_bytes,
            "home_files": self._home_files,
            "join": self._joins_lines,
            "cpu_seconds": int(seconds) + 1,
        }
        argument = pack(
            {
                "lines": json.dumps(lines).encode(),
                "state": pack(call.state),
                "limits": json.dumps(limits).encode(),
            }
        )
        return SandboxTask(
            Function("turnmill.tools.sandboxed.shell:run", argument, persistent=True),
            limits=Limits(
                seconds=seconds + _GRACE_SECONDS,
                cpu_seconds=int(seconds) + 1,
                memory_bytes=self._memory_bytes,
                file_bytes=max(Limits().file_bytes, 2 * self._home_bytes),
                output_bytes=4 * self._characters + MIB,
            ),
        )


def _describe_failure(result: SandboxResult, seconds: float) -> str:
    if result.limit == "time":
        return f"Process timed out after {seconds:g} seconds\n{UNCHANGED}"
    why = f"reached its limit of {result.limit}" if result.limit else "was killed"
    return f"The shell {why}.\n{UNCHANGED}"


def _is_state_part(name: str) -> bool:
    return name in ("cwd", "exports", "functions") or name.startswith("file/")


def _wrap(action: str, text: str) -> str:
    """Wrap the transcript in the format in which the action was written."""
    if action.endswith("```output"):
        return f"\n{text}\n```\n"
    if action.endswith("</tool_call>"):
        return f"\n```output\n{text}\n```\n"
    if action.endswith("<o>"):
        return f"\n{text}\n</o>\n"
    if "</bash>" in action:
        return f"\n<o>\n{text}\n</o>\n"
    return f"\n```output\n{text}\n```\n" if fences_are_even(action) else f"output\n{text}\n```\n"
