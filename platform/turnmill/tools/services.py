"""Asking a service behind a tool: an answer is an answer, and all else is an outage."""

from collections.abc import Mapping
from typing import Any

from turnmill.core.errors import ToolFailedError, ToolUnavailableError


class JsonService:
    """One address that takes and gives JSON."""

    def __init__(
        self, tool: str, setting: str, url: str, *, seconds: float, headers: Mapping[str, str] | None = None
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ToolUnavailableError(f"{tool}: {setting} ({url!r}) must be an address such as http://host:8080.")
        self._name = f"{tool}: the service at {setting} ({url})"
        self._url = url.rstrip("/")
        self._seconds = seconds
        self._headers = dict(headers or {})
        self._client: Any = None

    async def start(self) -> None:
        """Open the connections."""
        import httpx

        self._client = httpx.AsyncClient(
            timeout=self._seconds, headers=self._headers, limits=httpx.Limits(max_connections=None)
        )

    async def close(self) -> None:
        """Close them."""
        if self._client is not None:
            await self._client.aclose()

    async def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
        """The status, 200 or one that blames the request, and the object; ToolFailedError if there is none."""
        import asyncio

        try:
            async with asyncio.timeout(self._seconds):
                response = await self._client.post(f"{self._url}/{path}", json=body)
            if response.status_code not in (200, 400, 422):
                raise ValueError(f"it answered {response.status_code}: {response.text[:200]}")
            answer = response.json()
            if not isinstance(answer, dict):
                raise ValueError(f"it answered no object: {response.text[:200]}")
        except Exception as error:
            what = str(error) or type(error).__name__
            raise ToolFailedError(f"{self._name} failed: {what}.") from error
        return response.status_code, answer
