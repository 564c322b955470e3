"""The tool `piston`: runs programs in any language on a Piston server."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar
from xml.etree import ElementTree

from turnmill.core.errors import ToolFailedError
from turnmill.tools import settings
from turnmill.tools.base import Tool, ToolCall, ToolContext, ToolResult
from turnmill.tools.code_blocks import encodable
from turnmill.tools.registry import register
from turnmill.tools.services import JsonService

INTERNAL_ERROR = "XX"
"""Status of a stage that Piston itself could not run."""

_MILLISECONDS = 1000


@register
class Piston(Tool):
    """Runs a program and returns its output, which ends the trajectory."""

    name: ClassVar[str] = "piston"
    requires: ClassVar[tuple[str, ...]] = ("httpx",)

    def __init__(self, context: ToolContext) -> None:
        super().__init__(context)
        values = context.settings
        self._compile_seconds = settings.number(values, "PISTON_COMPILE_SECONDS", 10, least=0.1)
        self._run_seconds = settings.number(values, "PISTON_RUN_SECONDS", 3, least=0.1)
        seconds = settings.number(values, "PISTON_TIMEOUT_SECONDS", 30, least=0.1)
        url = settings.text(values, "PISTON_URL", "http://127.0.0.1:2000").rstrip("/")
        self._path = "execute" if "/api/v2" in url else "api/v2/execute"
        self._service = JsonService(self.name, "PISTON_URL", url, seconds=seconds)

    async def start(self) -> None:
        """Open the connections."""
        await self._service.start()

    async def close(self) -> None:
        """Close the connections."""
        await self._service.close()

    def usage(self) -> str:
        """Return one line on how to call it."""
        return (
            "Run a program in any language: "
            '<piston><language>python</language><file name="main.py">print(1)</file></piston>; '
            "<version>, <args> and <stdin> may be added."
        )

    def parse(self, action: str) -> str | None:
        """Parse an action that is XML or JSON as a whole, with a language and a file."""
        text = encodable(action).strip()
        if text.startswith("<piston>") and text.endswith("</piston>"):
            return _from_xml(text)
        return _from_json(text) if text.startswith("{") and text.endswith("}") else None

    async def call(self, call: ToolCall) -> ToolResult:
        """Run the program."""
        wanted = json.loads(call.parsed)
        limits = {
            "compile_timeout": round(self._compile_seconds * _MILLISECONDS),
            "run_timeout": round(self._run_seconds * _MILLISECONDS),
            "compile_memory_limit": -1,
            "run_memory_limit": -1,
        }
        status, answer = await self._service.post(
            self._path, {"version": "*", "stdin": "", "args": []} | wanted | limits
        )
        if status != 200:
            return ToolResult(f"Error: HTTP {status}: {answer.get('message')}", done=True, valid=False)
        return ToolResult(encodable(_report(wanted, answer)), done=True)


def _from_xml(text: str) -> str | None:
    """Parse an XML element; entities cannot be declared inside an element, so none can expand."""
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return None
    wanted: dict[str, object] = {
        element.tag: (element.text or "").strip()
        for element in root
        if element.tag in ("language", "version", "args", "stdin")
    }
    files = [
        {"name": element.get("name", f"file{number}"), "content": element.text or ""}
        for number, element in enumerate(root.findall("file"))
    ]
    if "args" in wanted:
        wanted["args"] = str(wanted["args"]).split()
    return json.dumps(wanted | {"files": files}) if wanted.get("language") and files else None


def _from_json(text: str) -> str | None:
    try:
        wanted = json.loads(text)
    except (ValueError, RecursionError):
        return None
    files = wanted.get("files") if wanted.get("language") else None
    is_whole = isinstance(files, list) and files and all(isinstance(file, dict) and "content" in file for file in files)
    known = ("language", "version", "args", "stdin", "files")
    return json.dumps({key: wanted[key] for key in known if key in wanted}) if is_whole else None


def _report(wanted: Mapping[str, object], answer: Mapping[str, Any]) -> str:
    run, compiled = answer.get("run"), answer.get("compile")
    for stage in (run, compiled):
        if isinstance(stage, dict) and stage.get("status") == INTERNAL_ERROR:
            raise ToolFailedError(f"piston: the service could not run a program: {stage.get('message')}.")
    if isinstance(run, dict):
        return _run_report(wanted, answer, run)
    if isinstance(compiled, dict):
        return (
            "Compilation error:\n\n"
            f"--- Compile output ---\n{compiled.get('stdout', '')}\n\n"
            f"--- Compile error ---\n{compiled.get('stderr', '')}\n\n"
            f"Compilation exit code: {compiled.get('code')}\n"
            f"Status: {compiled.get('status') or 'Unknown'}\n"
        )
    raise ToolFailedError(f"piston: the service answered neither `run` nor `compile`: {str(answer)[:200]}.")


def _run_report(wanted: Mapping[str, object], answer: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    status = f" ({run['status']})" if run.get("status") else ""
    return (
        "Execution result:\n\n"
        f"Language: {wanted['language']}\n"
        f"Version: {answer.get('version', wanted.get('version', '*'))}\n\n"
        f"--- STDOUT ---\n{run.get('stdout', '')}\n\n"
        f"--- STDERR ---\n{run.get('stderr', '')}\n\n"
        f"Exit code: {run.get('code')}{status}\n"
        f"Signal: {run.get('signal') or 'None'}\n"
        f"CPU time: {run.get('cpu_time') or 0}ms\n"
        f"Memory usage: {(run.get('memory') or 0) / 1e6:.2f}MB\n"
    )
