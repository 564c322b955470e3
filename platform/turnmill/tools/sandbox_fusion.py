"""The tool `sandbox_fusion`: runs programs in any language on a SandboxFusion server."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from turnmill.core.errors import ToolFailedError
from turnmill.tools import settings
from turnmill.tools.base import Tool, ToolCall, ToolContext, ToolResult
from turnmill.tools.code_blocks import encodable, up_to_last
from turnmill.tools.python_code import is_blocked
from turnmill.tools.registry import register
from turnmill.tools.services import JsonService

LANGUAGES = (
    *("bash", "cpp", "csharp", "cuda", "go", "java", "julia", "kotlin_script", "lean", "lua", "nodejs", "perl"),
    *("php", "python", "R", "racket", "ruby", "rust", "scala", "sql", "swift", "typescript", "verilog"),
)
"""Languages in which SandboxFusion runs programs, by its names."""

ALIASES = {
    "c++": "cpp",
    "golang": "go",
    "javascript": "nodejs",
    "js": "nodejs",
    "kotlin": "kotlin_script",
    "py": "python",
    "r": "R",
    "rb": "ruby",
    "rs": "rust",
    "sh": "bash",
    "ts": "typescript",
}
_BLOCKED = {
    "nodejs": ("process.exit", "child_process", "fs.writeFile", "fs.write", "fs.unlink", "fs.rmdir"),
    "cpp": ("system(", "exec(", "fork(", "popen("),
}
BLOCKED = "Execution blocked: Code contains potentially dangerous operations that are not allowed."
_MARGIN_SECONDS = 10.0
_TAG = re.compile(r"<([\w+]+)>")


@register
class SandboxFusion(Tool):
    """Runs a program and returns its output."""

    name: ClassVar[str] = "sandbox_fusion"
    requires: ClassVar[tuple[str, ...]] = ("httpx",)

    def __init__(self, context: ToolContext) -> None:
        super().__init__(context)
        values = context.settings
        self._compile_seconds = settings.number(values, "SANDBOX_FUSION_COMPILE_SECONDS", 10, least=0.1)
        self._run_seconds = settings.number(values, "SANDBOX_FUSION_RUN_SECONDS", 10, least=0.1)
        self._refuses_words = settings.switch(values, "SANDBOX_FUSION_BLOCKED_WORDS", True)
        seconds = self._compile_seconds + self._run_seconds + _MARGIN_SECONDS
        seconds = settings.number(values, "SANDBOX_FUSION_TIMEOUT_SECONDS", seconds, least=0.1)
        url = settings.text(values, "SANDBOX_FUSION_URL", "http://127.0.0.1:8080")
        self._service = JsonService(self.name, "SANDBOX_FUSION_URL", url, seconds=seconds)

    async def start(self) -> None:
        """Open the connections."""
        await self._service.start()

    async def close(self) -> None:
        """Close the connections."""
        await self._service.close()

    def usage(self) -> str:
        """Return one line on how to call it."""
        return "Write a program between <LANGUAGE> and </LANGUAGE>, or in a fence with its language; it is run."

    def parse(self, action: str) -> str | None:
        """Return the first block in a known language; a code fence without a language is Python."""
        text = encodable(action)
        blocks = [*_tagged_blocks(text), *re.findall(r"```([\w+]*)(.*?)```", up_to_last("```", text), re.DOTALL)]
        for tag, code in blocks:
            language = language_of(tag or "python")
            if language and code.strip():
                return json.dumps({"code": code.strip(), "language": language})
        return None

    async def call(self, call: ToolCall) -> ToolResult:
        """Run the program."""
        program = json.loads(call.parsed)
        if self._refuses_words and _is_refused(**program):
            return ToolResult(BLOCKED, done=True, valid=False)
        limits = {"compile_timeout": self._compile_seconds, "run_timeout": self._run_seconds}
        status, answer = await self._service.post("run_code", program | limits)
        if status != 200:
            return ToolResult(f"Error executing code in SandboxFusion: {status}: {answer}", done=True, valid=False)
        if answer.get("status") not in ("Success", "Failed"):
            raise ToolFailedError(f"sandbox_fusion: the service could not run a program: {answer.get('message')}.")
        return ToolResult(encodable(_report(answer)))


def _tagged_blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield tags with the text up to their end tags; tags without an end are skipped."""
    last_ends = {match[1]: match.start() for match in re.finditer(r"</([\w+]+)>", text)}
    at = 0
    while begin := _TAG.search(text, at):
        tag, at = begin[1], begin.end()
        if last_ends.get(tag, -1) >= at:
            end = text.index(f"</{tag}>", at)
            yield tag, text[at:end]
            at = end


def language_of(tag: str) -> str | None:
    """Return SandboxFusion's name of a language; None if it is unknown."""
    name = ALIASES.get(tag.lower(), tag.lower())
    return name if name in LANGUAGES else None


def _is_refused(code: str, language: str) -> bool:
    return is_blocked(code) if language == "python" else any(word in code for word in _BLOCKED.get(language, ()))


def _report(answer: Mapping[str, Any]) -> str:
    pieces = ["Execution results:\n\n"]
    if compiled := answer.get("compile_result"):
        pieces.append(f"Compilation: {compiled.get('status')}\n")
        if compiled.get("status") != "Finished" or compiled.get("return_code"):
            return "".join([*pieces, f"Compilation errors:\n{compiled.get('stderr') or ''}\n\n"])
    if run := answer.get("run_result"):
        pieces.append(f"Execution: {run.get('status')} (took {run.get('execution_time') or 0:.4f}s)\n")
        for title, text in (("Output", run.get("stdout")), ("Errors", run.get("stderr"))):
            pieces += [f"\n{title}:\n{text}"] if text else []
    if answer.get("status") != "Success":
        message = answer.get("message")
        pieces.append(f"\nStatus: {answer.get('status')}" + (f" - {message}" if message else ""))
    return "".join(pieces)
