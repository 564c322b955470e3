"""The tool `verl`: serves verl's `BaseTool` classes and `@function_tool` functions unchanged."""

import asyncio
import base64
import io
import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Protocol

from turnmill.core.errors import ToolUnavailableError
from turnmill.tools import settings
from turnmill.tools.base import Tool, ToolCall, ToolContext, ToolResult
from turnmill.tools.code_blocks import first_tagged
from turnmill.tools.registry import register

CONFIG, FUNCTIONS = "VERL_TOOL_CONFIG_PATH", "VERL_FUNCTION_TOOL_PATH"


class _ToolResponse(Protocol):
    """verl's `ToolResponse`."""

    text: str | None
    image: list[object] | None


@register
class VerlTools(Tool):
    """Calls verl tools by the function names in their schemas, each call with an instance of its own, as verl does.

    They run in the server's process, outside the sandbox, so serve only trusted code. An instance exists for one call
    only; state for later turns must be stored outside, where all replicas can find it.
    """

    name: ClassVar[str] = "verl"
    requires: ClassVar[tuple[str, ...]] = ("verl",)

    def __init__(self, context: ToolContext) -> None:
        super().__init__(context)
        self._config = settings.text(context.settings, CONFIG, "")
        self._functions = settings.text(context.settings, FUNCTIONS, "")
        self._tools: dict[str, Any] = {}
        self._normalize: Any = None

    async def start(self) -> None:
        """Import verl, which takes seconds, and create the tools."""
        if not self._config and not self._functions:
            raise ToolUnavailableError(
                f"verl: name a file of BaseTool classes with {CONFIG}, or of @function_tool functions with {FUNCTIONS}."
            )
        try:
            found = await asyncio.to_thread(_load, self._config or None, self._functions or None)
        except Exception as error:
            raise ToolUnavailableError(f"verl: its tools cannot be loaded: {type(error).__name__}: {error}") from error
        self._tools = {tool.name: tool for tool in found}
        self._normalize = import_module("verl.tools.function_tool").normalize_function_tool_return

    def usage(self) -> str:
        """Return the schemas as a chat template shows them."""
        schemas = [tool.tool_schema.model_dump(exclude_none=True) for tool in self._tools.values()]
        form = '<tool_call>{"name": ..., "arguments": {...}}</tool_call>'
        return f"Call a function with {form}: {json.dumps(schemas)}"

    def parse(self, action: str) -> str | None:
        """Return a call of one of the functions."""
        written = first_tagged(action, "tool_call")
        try:
            call = json.loads(written) if written else None
        except (ValueError, RecursionError):
            return None
        if not isinstance(call, dict) or call.get("name") not in self._tools:
            return None
        return json.dumps({"name": call["name"], "arguments": call.get("arguments") or {}})

    async def call(self, call: ToolCall) -> ToolResult:
        """Create, execute and release an instance; an error of the tool is its observation, as in verl's own loop."""
        wanted = json.loads(call.parsed)
        name, arguments = wanted["name"], wanted["arguments"]
        try:
            arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        except ValueError as error:
            return _result(f"Invalid JSON in arguments for '{name}': {error}")
        try:
            response, reward, metrics = await self._execute(name, arguments, call)
        except Exception as error:
            return _result(f"Error executing tool '{name}': {error}")
        observation = {"reward": reward, "metrics": metrics}
        if response.image:
            observation["image"] = [_data_url(image) for image in response.image]
        return _result(response.text or "", observation)

    async def _execute(self, name: str, arguments: object, call: ToolCall) -> tuple[_ToolResponse, object, object]:
        tool = self._tools[name]
        if hasattr(tool, "fn"):
            normalized: tuple[_ToolResponse, object, object] = self._normalize(await tool.call(arguments))
            return normalized
        given = call.extra.get("tools_kwargs")
        options = given.get(name) if isinstance(given, dict) else None
        options = options if isinstance(options, dict) else {}
        # Fields of verl's agent_data that are known outside its loop.
        agent_data = SimpleNamespace(request_id=call.trajectory_id, tools_kwargs=given, extra_fields=dict(call.extra))
        instance, _ = await tool.create(create_kwargs=options.get("create_kwargs", {}))
        try:
            executed: tuple[_ToolResponse, object, object] = await tool.execute(
                instance, arguments, agent_data=agent_data
            )
            return executed
        finally:
            await tool.release(instance)


def _load(config: str | None, functions: str | None) -> list[Any]:
    for path in filter(None, (config, functions)):
        if not Path(path).is_file():
            raise FileNotFoundError(f"there is no file {path}")
    # Imported by name, as verl imports torch and Ray, which no other tool needs.
    tools: list[Any] = import_module("verl.tools.tool_registry").load_all_tools(config, functions)
    return tools


def _data_url(image: Any) -> str:
    """Encode an image as a PNG data URL; text stays unchanged."""
    if not hasattr(image, "save"):
        return str(image)
    image.save(buffer := io.BytesIO(), format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _result(text: str, more: Mapping[str, object] | None = None) -> ToolResult:
    return ToolResult({"obs": f"\n<tool_response>\n{text}\n</tool_response>\n", "reward": 0.0, **(more or {})})
