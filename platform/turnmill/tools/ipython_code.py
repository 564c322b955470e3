"""The tool `ipython_code`: a Python session whose variables, functions and files persist between turns."""

import json
from typing import ClassVar

from turnmill.sandboxes.base import MIB, Function, Limits, SandboxResult, SandboxTask
from turnmill.tools import settings
from turnmill.tools.base import Tool, ToolCall, ToolContext, ToolResult
from turnmill.tools.code_blocks import encodable, fenced, fences_are_even, first_tagged, stdin_of, tagged
from turnmill.tools.python_code import describe_exit
from turnmill.tools.registry import register
from turnmill.tools.sandboxed.packing import pack
from turnmill.tools.sessions import SessionResult, read_session_result

MAX_OUTPUT_CHARACTERS = 100 * 1024
MAX_FILES = 1000
NO_OUTPUT = "Script executed successfully (no output)"
UNCHANGED = "[The session is as it was before this code.]"
# The session stops a cell by an alarm and keeps its changes; code that resists is killed so much later.
_GRACE_SECONDS = 2.0


@register
class IPythonCode(Tool):
    """Runs a cell with the variables of earlier cells."""

    name: ClassVar[str] = "ipython_code"
    stateful: ClassVar[bool] = True
    requires: ClassVar[tuple[str, ...]] = ("cloudpickle",)

    def __init__(self, context: ToolContext) -> None:
        super().__init__(context)
        values = context.settings
        self._seconds = settings.number(values, "IPYTHON_TIMEOUT_SECONDS", 10, least=0.1)
        self._max_bytes = settings.state_bytes(values, "IPYTHON_MAX_STATE_BYTES", 16 * MIB, least=1)
        memory_mib = settings.count(values, "IPYTHON_MEMORY_MIB", 1024, least=64)
        seconds = self._seconds + _GRACE_SECONDS
        self._limits = Limits(
            seconds=seconds,
            cpu_seconds=int(seconds) + 1,
            memory_bytes=memory_mib * MIB,
            file_bytes=max(Limits().file_bytes, 2 * self._max_bytes),
        )

    def usage(self) -> str:
        """Return one line on how to call it."""
        return "Write Python code between <python> and </python>; variables and functions are there in later turns."

    def parse(self, action: str) -> str | None:
        """Return the Python blocks, or the code in a call of the function `python`."""
        blocks = tagged(action, "python") or fenced(action, "python") or _code_of_call(action)
        return "\n".join(blocks) if blocks else None

    async def call(self, call: ToolCall) -> ToolResult:
        """Run the cell and return the change of state."""
        if not call.parsed.strip():
            return self._result(call, "Error: script must be a non-empty string", ok=False)
        limits = {"seconds": self._seconds, "bytes": self._max_bytes, "files": MAX_FILES}
        argument = pack(
            {
                "source": call.parsed.encode("utf-8", "replace"),
                "state": pack(call.state),
                "limits": json.dumps(limits).encode(),
            }
        )
        stdin = stdin_of(call.action, call.extra.get("stdin"))
        program = Function("turnmill.tools.sandboxed.python_session:run", argument)
        result = await self.context.sandbox.run(SandboxTask(program, stdin=stdin, limits=self._limits))
        session = read_session_result(result.value, is_part=_is_state_part, max_bytes=self._max_bytes + MIB)
        if session is None:
            return self._result(call, self._describe_failure(result), ok=False, timed_out=result.limit == "time")
        return self._finished(call, result, session)

    def _finished(self, call: ToolCall, result: SandboxResult, session: SessionResult) -> ToolResult:
        report = session.report
        ok, timed_out = report.get("ok") is True, report.get("timed_out") is True
        notices = [_lost_notice(report.get("lost")), str(report.get("notice") or "")]
        text = self._timed_out() if timed_out else _format_output(result, ok)
        text = "\n".join([text, *(notice for notice in notices if notice)])
        return self._result(call, text, ok=ok, timed_out=timed_out, session=session)

    def _describe_failure(self, result: SandboxResult) -> str:
        if result.limit == "time":
            return f"{self._timed_out()}\n{UNCHANGED}"
        why = f"Execution stopped at its limit of {result.limit}.\n" if result.limit else describe_exit(result)
        return f"{_format_output(result, ok=False)}\n{why}{UNCHANGED}".lstrip("\n")

    def _timed_out(self) -> str:
        return f"Execution time out after {self._seconds:g} seconds"

    def _result(
        self, call: ToolCall, text: str, *, ok: bool, timed_out: bool = False, session: SessionResult | None = None
    ) -> ToolResult:
        metrics: dict[str, object] = {"code_success": ok, "code_lines": call.parsed.count("\n") + 1}
        observation = {
            "obs": _wrap(call.action, encodable(text).lstrip(" \n")),
            "metrics": metrics,
            "timeout": timed_out,
        }
        return ToolResult(observation, change=session.change if session else None)


def _code_of_call(action: str) -> list[str]:
    written = first_tagged(action, "tool_call")
    try:
        call = json.loads(written) if written else None
    except (ValueError, RecursionError):
        return []
    arguments = call.get("arguments") if isinstance(call, dict) and call.get("name") == "python" else None
    code = arguments.get("code") if isinstance(arguments, dict) else None
    return [code.strip()] if isinstance(code, str) and code.strip() else []


def _format_output(result: SandboxResult, ok: bool) -> str:
    stdout, stderr = (stream.decode("utf-8", "replace") for stream in (result.stdout, result.stderr))
    if ok:
        text = stdout + (f"\nWarnings: {stderr}" if stderr else "")
    else:
        text = stdout.rstrip(" \n") + (f"\nStderr: {stderr}" if stderr else "")
    if len(text) > MAX_OUTPUT_CHARACTERS or result.truncated:
        text = text[:MAX_OUTPUT_CHARACTERS] + "\n...[output truncated]..."
    return text.rstrip(" \n") or (NO_OUTPUT if ok else "")


def _lost_notice(names: object) -> str:
    if not isinstance(names, list) or not names:
        return ""
    return f"[Could not be brought back from an earlier turn: {'; '.join(map(str, names))}]"


def _is_state_part(name: str) -> bool:
    return name == "count" or name.startswith(("vars/", "file/"))


def _wrap(action: str, text: str) -> str:
    """Wrap the observation in the format in which the action was written."""
    if action.endswith("```output"):
        return f"\n{text}\n```\n"
    if action.endswith("</tool_call>"):
        return text
    if action.endswith("<output>"):
        return f"\n{text}\n</output>\n"
    if "</python>" in action:
        return f"\n<output>\n{text}\n</output>\n"
    if "```python" in action or action.strip(" \n").endswith("```"):
        return f"\n```output\n{text}\n```\n" if fences_are_even(action) else f"output\n{text}\n```\n"
    return f"\n{text}\n"
