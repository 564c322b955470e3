"""Client of a gateway to servers of the Model Context Protocol (MCP), each at a path of its own."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any, Literal

Transport = Literal["sse", "http"]

IDEMPOTENCY_KEY = "turnmill.dev/idempotency-key"
"""Where the key of a call stands in `_meta` of its request."""


class McpGateway:
    """Opens a session for each call, so that any replica can make the next call."""

    def __init__(self, address: str, transport: Transport, seconds: float) -> None:
        self._address = address.rstrip("/")
        self._transport = transport
        self._seconds = seconds
        self._tools: dict[str, dict[str, str]] = {}

    def url(self, server: str) -> str:
        """Return the URL of a server."""
        return f"{self._address}/{server}/{'sse' if self._transport == 'sse' else 'mcp'}"

    def known_tools(self, server: str) -> Mapping[str, str]:
        """Return descriptions by name; empty if the server has not been queried yet."""
        return self._tools.get(server, {})

    def servers(self) -> list[str]:
        """Return the servers that have been queried."""
        return sorted(self._tools)

    async def tools(self, server: str) -> Mapping[str, str]:
        """Return descriptions by name; the server is queried once."""
        if server not in self._tools:
            async with self._session(server) as session:
                listed = await session.list_tools()
            self._tools[server] = {tool.name: tool.description or "" for tool in listed.tools}
        return self._tools[server]

    async def resources(self, server: str) -> Mapping[str, str]:
        """Return descriptions by URI; empty if the server offers no resources."""
        async with self._session(server) as session:
            try:
                listed = await session.list_resources()
            except _errors():
                return {}
            return {str(resource.uri): resource.description or "" for resource in listed.resources}

    async def call(self, server: str, tool: str, arguments: Mapping[str, object], key: str | None = None) -> str:
        """Call a tool and return the text of its result; the server finds the key under `_meta` of the request."""
        meta = None if key is None else {IDEMPOTENCY_KEY: key}
        async with self._session(server) as session:
            return _text(await session.call_tool(tool, dict(arguments), meta=meta))

    @asynccontextmanager
    async def _session(self, server: str) -> AsyncIterator[Any]:
        from mcp.client.client import Client
        from mcp.client.sse import sse_client

        url = self.url(server)
        async with asyncio.timeout(self._seconds):
            transport = sse_client(url, timeout=self._seconds) if self._transport == "sse" else url
            async with Client(transport, mode="legacy" if self._transport == "sse" else "auto", cache=None) as client:
                yield client


def protocol_error(error: BaseException) -> Exception | None:
    """Return the server's own error among errors raised together; None if the server did not reject the request."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for inner in error.exceptions if (found := protocol_error(inner))), None)
    return error if isinstance(error, _errors()) else None


def is_missing(error: BaseException) -> bool:
    """Return True if the gateway has no such server, which streamable HTTP reports in its own way."""
    from httpx2 import HTTPStatusError

    if isinstance(error, BaseExceptionGroup):
        return any(is_missing(inner) for inner in error.exceptions)
    return isinstance(error, HTTPStatusError) and error.response.status_code == HTTPStatus.NOT_FOUND


def _errors() -> type[Exception]:
    from mcp.shared.exceptions import MCPError

    return MCPError


def _text(result: Any) -> str:
    if result.content:
        return "".join(item.text if hasattr(item, "text") else str(item) for item in result.content)
    structured = getattr(result, "structured_content", None)
    return json.dumps(structured) if structured is not None else str(result)
