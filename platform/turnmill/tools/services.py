"""A client of the HTTP services behind tools."""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from turnmill.core.errors import ToolFailedError, ToolUnavailableError

if TYPE_CHECKING:
    import httpx  # Imported when a tool starts: most servers run without it.


class JsonService:
    """A service that accepts and returns JSON; any other response counts as a failure."""

    def __init__(
        self, tool: str, setting: str, url: str, *, seconds: float, headers: Mapping[str, str] | None = None
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ToolUnavailableError(f"{tool}: {setting} ({url!r}) must be an address such as http://host:8080.")
        self._name = f"{tool}: the service at {setting} ({url})"
        self._url = url.rstrip("/")
        self._seconds = seconds
        self._headers = dict(headers or {})
        self._client: httpx.AsyncClient | None = None

    async def start(self) -> None:
        """Open the connections."""
        import httpx

        self._client = httpx.AsyncClient(
            timeout=self._seconds, headers=self._headers, limits=httpx.Limits(max_connections=None)
        )

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()

    async def post(self, path: str, body: Mapping[str, object]) -> tuple[int, Mapping[str, Any]]:
        """Return the status, which is 200 or blames the request, and the JSON object.

        Raises ToolFailedError for any other response.
        """
        assert self._client is not None, "start() opens the connections"
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
