"""The tool `mcp_interface`: calls tools of MCP servers."""

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import ClassVar

from turnmill.core.errors import ToolFailedError, ToolUnavailableError
from turnmill.tools import settings
from turnmill.tools.base import Tool, ToolCall, ToolContext, ToolResult
from turnmill.tools.code_blocks import first_tagged
from turnmill.tools.mcp_gateway import McpGateway, is_missing, protocol_error
from turnmill.tools.registry import register

MAX_CHARACTERS = 20_000
HELPERS = "mcp."
SERVER_NAME = re.compile("[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class McpCall:
    """A call as an agent writes it."""

    name: str
    arguments: object
    server: str | None


class _NotResolvedError(Exception):
    """No server can be found for a call; the message is for the agent."""


@register
class McpInterface(Tool):
    """Forwards calls to the servers behind a gateway."""

    name: ClassVar[str] = "mcp_interface"
    requires: ClassVar[tuple[str, ...]] = ("mcp",)

    def __init__(self, context: ToolContext) -> None:
        super().__init__(context)
        values = context.settings
        address = settings.text(values, "MCP_GATEWAY_ADDRESS", "")
        if not address.startswith(("http://", "https://")):
            raise ToolUnavailableError(
                f"mcp_interface: MCP_GATEWAY_ADDRESS ({address!r}) must be the address of an MCP gateway, "
                "such as http://host:8002; server NAME is then at http://host:8002/NAME/sse."
            )
        transport = settings.choice(values, "MCP_TRANSPORT", "sse", ("sse", "http"))
        seconds = settings.number(values, "MCP_TIMEOUT_SECONDS", 30, least=0.1)
        self._gateway = McpGateway(address, "sse" if transport == "sse" else "http", seconds)
        self._default_server = settings.text(values, "MCP_DEFAULT_SERVER", "")
        self._on_failure = settings.choice(values, "MCP_ON_FAILURE", "fail", ("fail", "text"))

    async def start(self) -> None:
        """Import the client in advance, as its import during the first call would block all others."""
        await asyncio.to_thread(import_module, "mcp.client.client")

    def usage(self) -> str:
        """Return one line with the known tools."""
        names = [name for server in self._gateway.servers() for name in self._gateway.known_tools(server)]
        if not names:
            return 'You can call remote MCP tools using <tool_call>{"name":..., "arguments":{...}}</tool_call>.'
        preview = ", ".join(names[:6]) + (" ..." if len(names) > 6 else "")
        return f"You can call remote MCP tools discovered from server ({len(names)} tools). Examples: {preview}"

    def parse(self, action: str) -> str | None:
        """Return the call; None if it names a known server without such a tool, as it may be for another tool."""
        found = parse_call(action)
        if found is None:
            return None
        known = set(self._gateway.known_tools(found.server)) if found.server is not None else set()
        if known and found.name not in known and not found.name.startswith(HELPERS):
            return None
        return json.dumps({"name": found.name, "arguments": found.arguments, "server": found.server})

    async def call(self, call: ToolCall) -> ToolResult:
        """Forward the call to the server that it names, or to one that has such a tool."""
        wanted = McpCall(**json.loads(call.parsed))
        server = wanted.server or ""
        try:
            server = await self._resolve(wanted, call.extra)
            text = await self._answer(wanted, server, call.idempotency_key)
        except _NotResolvedError as error:
            return ToolResult(_wrap(str(error)), done=True, valid=False)
        except Exception as error:
            if is_missing(error) and self._is_invented_server(server, call.extra):
                return ToolResult(_wrap(f"There is no server '{server}'."), valid=False)
            text = self._explain(error, wanted, server)
        return ToolResult(_wrap(text))

    async def _resolve(self, wanted: McpCall, extra: Mapping[str, object]) -> str:
        allowed = _allowed(extra.get("mcp_servers"))
        # A name becomes part of an address: one with slashes or dots would lead elsewhere on the gateway.
        for name in (wanted.server, *allowed):
            if name is not None and not SERVER_NAME.fullmatch(name):
                raise _NotResolvedError(f"{name[:100]!r} is no name of a server: use letters, digits, _ and -.")
        if wanted.server is not None:
            if (allowed or extra.get("use_specified_server")) and wanted.server not in allowed:
                raise _NotResolvedError(f"Server '{wanted.server}' not allowed for this task. Allowed: {allowed}")
            return wanted.server
        candidates = allowed or [name for name in (self._default_server,) if name] or self._gateway.servers()
        if not candidates:
            raise _NotResolvedError("No MCP servers configured for this task.")
        if len(candidates) == 1:
            return candidates[0]
        having = [server for server in candidates if wanted.name in await self._gateway.tools(server)]
        if len(having) == 1:
            return having[0]
        if having:
            raise _NotResolvedError(
                f"Tool '{wanted.name}' is available on multiple servers {having}; please specify which one to use."
            )
        raise _NotResolvedError(f"Unable to locate tool '{wanted.name}'. Specify one of the servers: {candidates}")

    def _is_invented_server(self, server: str, extra: Mapping[str, object]) -> bool:
        """Return True if only the agent names the server, and it has never answered."""
        if self._on_failure != "fail":
            return False
        return server not in (*_allowed(extra.get("mcp_servers")), self._default_server, *self._gateway.servers())

    async def _answer(self, wanted: McpCall, server: str, key: str | None) -> str:
        if wanted.name == "mcp.list_tools":
            return _listing("Available tools:", await self._gateway.tools(server))
        if wanted.name == "mcp.list_resources":
            return _listing("Available resources:", await self._gateway.resources(server))
        if wanted.name.startswith(HELPERS):
            return f"Unknown mcp helper: {wanted.name}"
        await self._gateway.tools(server)
        if not isinstance(wanted.arguments, dict):
            return json.dumps({"error": "arguments must be an object", "server": server, "tool": wanted.name})
        return await self._gateway.call(server, wanted.name, wanted.arguments, key)

    def _explain(self, error: Exception, wanted: McpCall, server: str) -> str:
        """Return a server's error for the agent; raises ToolFailedError if the server cannot be reached."""
        refusal = protocol_error(error)
        if refusal is None and self._on_failure == "fail":
            what = str(error) or type(error).__name__
            raise ToolFailedError(f"mcp_interface: {self._gateway.url(server)} failed: {what}.") from error
        shown = refusal or error
        return json.dumps(
            {"error": str(shown), "error_type": type(shown).__name__, "server": server, "tool": wanted.name}
        )


def parse_call(action: str) -> McpCall | None:
    """Parse a `<tool_call>` with JSON, or an action that is JSON as a whole, as in ReAct."""
    call = first_tagged(action, "tool_call")
    try:
        data = json.loads(action if call is None else call)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict):
        return None
    if call is None:
        inner = data["action"] if isinstance(data.get("action"), dict) else data
        if inner is data and not {"tool", "arguments"} <= data.keys():
            return None
        data = {"name": inner.get("tool"), "arguments": inner.get("arguments"), "server": inner.get("server")}
    server = data.get("server") or data.get("server_name") or data.get("server_label")
    name = data.get("name")
    if not isinstance(name, str) or not name:
        return None
    return McpCall(name, _arguments(data.get("arguments")), None if server is None else str(server))


def _arguments(given: object) -> object:
    if isinstance(given, str):
        try:
            parsed: object = json.loads(given) or {}
        except ValueError:
            return given
        return parsed
    return {} if given is None else given


def _allowed(servers: object) -> list[str]:
    given = servers if isinstance(servers, list) else []
    named = [entry.get("name") if isinstance(entry, dict) else entry for entry in given]
    return sorted({str(name) for name in named if name})


def _listing(title: str, entries: Mapping[str, str]) -> str:
    return "\n".join([title, *(f"- {name}: {description}" for name, description in entries.items())])


def _wrap(text: str) -> str:
    shown = text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}\n... (truncated)"
    return f"\n<mcp_response>\n```result\n{shown}\n```\n</mcp_response>\n"
