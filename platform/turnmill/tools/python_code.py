"""The tool `python_code`: runs a program without keeping any state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from turnmill.sandboxes.base import MIB, Function, Limits, SandboxResult, SandboxTask
from turnmill.tools import settings
from turnmill.tools.assertions import JUDGE_MODULES
from turnmill.tools.base import Tool, ToolCall, ToolContext, ToolResult
from turnmill.tools.code_blocks import fenced, fences_are_even, stdin_of, tagged
from turnmill.tools.registry import register
from turnmill.tools.sandboxed import python_judge
from turnmill.tools.sandboxed.packing import pack
from turnmill.tools.sandboxed.python_main import EXITED, REACHED_END

MAX_OBSERVATION_CHARACTERS = 100_000
BLOCKED = "Execution blocked: Code contains potentially dangerous operations or imports."
_BLOCKED_MODULES = ("subprocess", "multiprocessing", "threading", "socket", "psutil", "resource", "ctypes")
_BLOCKED_CALLS = (
    "os.system", "os.popen", "os.spawn", "os.fork", "os.exec", "sys.exit", "os._exit", "os.kill",
)  # fmt: skip
_BLOCKED_WORDS = (
    *(f"{keyword} {module}" for module in _BLOCKED_MODULES for keyword in ("import", "from")),
    *_BLOCKED_CALLS,
)


def python_blocks(action: str) -> str | None:
    """Return the program in an action: all blocks in the first format that it contains; None if there are none."""
    blocks = tagged(action, "python") or fenced(action, "python") or fenced(action, "py")
    return "\n".join(blocks) if blocks else None


def is_blocked(source: str) -> bool:
    """Return True if the source has a forbidden word; isolation does not depend on this."""
    return any(word in source for word in _BLOCKED_WORDS)


def wrap(action: str, text: str) -> str:
    """Wrap the observation in the format in which the action was written."""
    if "```output" in action or "```python" in action:
        return f"\n```result\n{text}\n```\n" if fences_are_even(action) else f"\n{text}\n```\n"
    if "</tool_call>" in action:
        return f"\n<tool_response>\n```result\n{text}\n```\n</tool_response>\n"
    if action.strip(" \n").endswith("<result>"):
        return f"\n{text}\n</result>\n"
    return f"\n<result>\n{text}\n</result>\n"


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """Output of a program, and how it ended."""

    stdout: str
    stderr: str
    failed: bool
    reached_end: bool = False
    """True if the last line was executed; a program that exits earlier need not have failed."""


class PythonProgram:
    """Runs programs within the limits for Python."""

    def __init__(self, context: ToolContext) -> None:
        self._sandbox = context.sandbox
        self.seconds = settings.number(context.settings, "PYTHON_TIMEOUT_SECONDS", 10, least=0.1)
        memory_mib = settings.count(context.settings, "PYTHON_MEMORY_MIB", 1024, least=64)
        self._refuses_words = settings.switch(context.settings, "PYTHON_BLOCKED_WORDS", True)
        self._limits = Limits(seconds=self.seconds, cpu_seconds=int(self.seconds) + 1, memory_bytes=memory_mib * MIB)

    async def run(self, source: str, stdin: bytes, *, prelude: bool) -> ProgramResult:
        """Run a program until it ends or reaches a limit."""
        if self._refuses_words and is_blocked(source):
            return ProgramResult("", BLOCKED, failed=True)
        parts = {"source": source.encode("utf-8", "replace"), **({"prelude": b""} if prelude else {})}
        result, stderr = await self._call("python_main:run", parts, stdin)
        return ProgramResult(
            result.stdout.decode("utf-8", "replace"),
            stderr,
            failed=bool(stderr) or result.value not in (REACHED_END, EXITED),
            reached_end=result.value == REACHED_END,
        )

    async def evaluate(self, source: str, stdin: bytes, expressions: Sequence[str]) -> tuple[ProgramResult, bytes]:
        """Run a program to its end; return also the pickled values of expressions, which only `judge` reads."""
        if self._refuses_words and is_blocked(source):
            return ProgramResult("", BLOCKED, failed=True), b""
        parts = {"source": source.encode("utf-8", "replace"), "expressions": "\n".join(expressions).encode()}
        result, stderr = await self._call("python_main:evaluate", parts, stdin)
        ended = bool(result.value)
        output = ProgramResult(
            result.stdout.decode("utf-8", "replace"), stderr, failed=bool(stderr) or not ended, reached_end=ended
        )
        return output, result.value or b""

    async def judge(self, condition: str, values: bytes) -> str | None:
        """Return None if a condition on the values of `evaluate` holds, otherwise the error."""
        modules = " ".join(module for module in JUDGE_MODULES if module in condition)
        parts = {"condition": condition.encode(), "values": values, "modules": modules.encode()}
        result, stderr = await self._call("python_judge:run", parts, b"")
        match result.value:
            case python_judge.HOLDS:
                return None
            case None:
                return stderr
            case python_judge.FAILS:
                return "AssertionError\n"
            case error:
                return error.decode()

    async def _call(self, function: str, parts: Mapping[str, bytes], stdin: bytes) -> tuple[SandboxResult, str]:
        """Call a function in the sandbox; return its result, and its errors with an explanation of how it ended."""
        program = Function(f"turnmill.tools.sandboxed.{function}", pack(parts))
        result = await self._sandbox.run(SandboxTask(program, stdin=stdin, limits=self._limits))
        return result, result.stderr.decode("utf-8", "replace") + self._explain(result)

    def _explain(self, result: SandboxResult) -> str:
        match result.limit:
            case "time":
                return f"Execution timed out after {self.seconds:g} seconds.\n"
            case None:
                return "" if result.value is not None else describe_exit(result)
            case limit:
                return f"Execution stopped at its limit of {limit}.\n"


def describe_exit(result: SandboxResult) -> str:
    """Describe the exit of a program that returned no value."""
    if result.exit_code is None:
        return "Execution was killed.\n"
    return f"Execution ended with code {result.exit_code}.\n" if result.exit_code else ""


@register
class PythonCode(Tool):
    """Runs a program and returns its output."""

    name: ClassVar[str] = "python_code"

    def __init__(self, context: ToolContext) -> None:
        super().__init__(context)
        self._program = PythonProgram(context)

    def usage(self) -> str:
        """Return one line on how to call it."""
        return "Write Python code between <python> and </python>; it runs in a sandbox, and what it prints comes back."

    def parse(self, action: str) -> str | None:
        """Return the Python blocks."""
        return python_blocks(action)

    async def call(self, call: ToolCall) -> ToolResult:
        """Run the program."""
        stdin = stdin_of(call.action, call.extra.get("stdin"))
        result = await self._program.run(call.parsed, stdin, prelude=True)
        text = f"{result.stdout}\n{result.stderr}".strip(" \n")
        return ToolResult(wrap(call.action, text[:MAX_OBSERVATION_CHARACTERS]))
