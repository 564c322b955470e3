"""The tool `search_retrieval`: asks a retriever service for documents."""

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

from turnmill.core.errors import ToolFailedError, ToolUnavailableError
from turnmill.tools import settings
from turnmill.tools.base import Tool, ToolCall, ToolContext, ToolResult
from turnmill.tools.code_blocks import last_tagged
from turnmill.tools.registry import register


@register
class SearchRetrieval(Tool):
    """Answers the last query of an action with documents; an answer ends the trajectory."""

    name: ClassVar[str] = "search_retrieval"
    requires: ClassVar[tuple[str, ...]] = ("httpx",)

    def __init__(self, context: ToolContext) -> None:
        super().__init__(context)
        values = context.settings
        self._url = settings.text(values, "RETRIEVER_URL", "http://127.0.0.1:8000/retrieve")
        self._topk = settings.count(values, "RETRIEVER_TOPK", 3, least=1)
        self._seconds = settings.number(values, "RETRIEVER_TIMEOUT_SECONDS", 30, least=0.1)
        self._on_failure = settings.choice(values, "RETRIEVER_ON_FAILURE", "fail", ("fail", "empty"))
        self._client: Any = None

    async def start(self) -> None:
        """Open the connections."""
        import httpx

        if not self._url.startswith(("http://", "https://")):
            raise ToolUnavailableError(
                f"RETRIEVER_URL ({self._url!r}) must be an address such as http://host:8000/retrieve."
            )
        self._client = httpx.AsyncClient(timeout=self._seconds, limits=httpx.Limits(max_connections=None))

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()

    def usage(self) -> str:
        """One line."""
        return "You can search for information by putting your query between <search> and </search> tags."

    def parse(self, action: str) -> str | None:
        """Its last query, or else its last answer."""
        query = last_tagged(action, "search")
        return query if query is not None else last_tagged(action, "answer")

    async def call(self, call: ToolCall) -> ToolResult:
        """Search, or end."""
        query = last_tagged(call.action, "search")
        if query is None:
            return ToolResult("", done=True, valid=False)
        documents = await self._retrieve(query)
        return ToolResult(f"\n\n<information>{_shown(documents).strip()}</information>\n\n")

    async def _retrieve(self, query: str) -> Sequence[str]:
        request = {"queries": [query], "topk": self._topk, "return_scores": True}
        try:
            async with asyncio.timeout(self._seconds):
                response = await self._client.post(self._url, json=request)
            if response.status_code != 200:
                raise ValueError(f"it answered {response.status_code}: {response.text[:200]}")
            return [_contents(found) for found in response.json()["result"][0]]
        except Exception as error:
            if self._on_failure == "empty":
                return []
            what = str(error) or type(error).__name__
            raise ToolFailedError(
                f"search_retrieval: the retriever at RETRIEVER_URL ({self._url}) failed: {what}."
            ) from error


def _contents(found: dict[str, Any]) -> str:
    document = found.get("document", found)
    return str(document.get("contents") or "")


def _shown(documents: Sequence[str]) -> str:
    """Of each, its first line as the title."""
    pieces = []
    for number, contents in enumerate(documents, start=1):
        title, _, text = contents.partition("\n") if contents else ("No title", "", "No content")
        pieces.append(f"Doc {number}(Title: {title}) {text}\n")
    return "".join(pieces)
