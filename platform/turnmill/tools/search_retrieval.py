"""The tool `search_retrieval`: queries a retriever service for documents."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from turnmill.core.errors import ToolFailedError, ToolUnavailableError
from turnmill.tools import settings
from turnmill.tools.base import Tool, ToolCall, ToolContext, ToolResult
from turnmill.tools.code_blocks import last_tagged
from turnmill.tools.registry import register

if TYPE_CHECKING:
    import httpx


@register
class SearchRetrieval(Tool):
    """Searches for the last query of an action; an answer ends the trajectory."""

    name: ClassVar[str] = "search_retrieval"
    requires: ClassVar[tuple[str, ...]] = ("httpx",)

    def __init__(self, context: ToolContext) -> None:
        super().__init__(context)
        values = context.settings
        self._url = settings.text(values, "RETRIEVER_URL", "http://127.0.0.1:8000/retrieve")
        self._topk = settings.count(values, "RETRIEVER_TOPK", 3, least=1)
        self._seconds = settings.number(values, "RETRIEVER_TIMEOUT_SECONDS", 30, least=0.1)
        self._on_failure = settings.choice(values, "RETRIEVER_ON_FAILURE", "fail", ("fail", "empty"))
        self._client: httpx.AsyncClient | None = None

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
        """Return one line on how to call it."""
        return "You can search for information by putting your query between <search> and </search> tags."

    def parse(self, action: str) -> str | None:
        """Return the last query, or otherwise the last answer."""
        query = last_tagged(action, "search")
        return query if query is not None else last_tagged(action, "answer")

    async def call(self, call: ToolCall) -> ToolResult:
        """Search, or end the trajectory."""
        query = last_tagged(call.action, "search")
        if query is None:
            return ToolResult("", done=True, valid=False)
        documents = await self._retrieve(query)
        return ToolResult(f"\n\n<information>{format_documents(documents).strip()}</information>\n\n")

    async def _retrieve(self, query: str) -> Sequence[str]:
        assert self._client is not None, "start() opens the connections"
        request = {"queries": [query], "topk": self._topk, "return_scores": True}
        try:
            async with asyncio.timeout(self._seconds):
                response = await self._client.post(self._url, json=request)
            if response.status_code != 200:
                raise ValueError(f"it answered {response.status_code}: {response.text[:200]}")
            return [contents_of(found) for found in response.json()["result"][0]]
        except Exception as error:
            if self._on_failure == "empty":
                return []
            what = str(error) or type(error).__name__
            raise ToolFailedError(
                f"search_retrieval: the retriever at RETRIEVER_URL ({self._url}) failed: {what}."
            ) from error


def contents_of(found: dict[str, object]) -> str:
    """Return the text of a document, with or without its score. Raises ValueError if it is no object."""
    document = found.get("document", found)
    if not isinstance(document, dict):
        raise ValueError(f"it returned a document that is not an object: {str(document)[:200]}")
    return str(document.get("contents") or "")


def format_documents(documents: Sequence[str]) -> str:
    """Format the documents, with the first line of each as its title."""
    pieces = []
    for number, contents in enumerate(documents, start=1):
        title, _, text = contents.partition("\n") if contents else ("No title", "", "No content")
        pieces.append(f"Doc {number}(Title: {title}) {text}\n")
    return "".join(pieces)
