"""The tool `google_search`: searches Google through the service Serper."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from turnmill.core.errors import ToolFailedError, ToolUnavailableError
from turnmill.tools import settings
from turnmill.tools.base import Tool, ToolCall, ToolContext, ToolResult
from turnmill.tools.code_blocks import encodable, find_all
from turnmill.tools.registry import register
from turnmill.tools.services import JsonService

MAX_QUERY = 500
_MAX_SNIPPET = 1000
_PATTERNS = (
    r"(?is)<search>(.*?)</search>",
    r"(?is)```\s*search\s*\n(.*?)\n```",
    r"(?is)search:\s*(.*?)(?:\n|$)",
    r"(?is)google:\s*(.*?)(?:\n|$)",
)


@register
class GoogleSearch(Tool):
    """Searches for the first query of an action, and returns titles, addresses and snippets."""

    name: ClassVar[str] = "google_search"
    requires: ClassVar[tuple[str, ...]] = ("httpx",)

    def __init__(self, context: ToolContext) -> None:
        super().__init__(context)
        values = context.settings
        key = settings.text(values, "SERPER_API_KEY", "")
        if not key:
            raise ToolUnavailableError("google_search: SERPER_API_KEY is missing: set it to a key of serper.dev.")
        self._num_results = settings.count(values, "GOOGLE_SEARCH_RESULTS", 10, least=1)
        self._locale = {
            "hl": settings.text(values, "GOOGLE_SEARCH_LANGUAGE", "en"),
            "gl": settings.text(values, "GOOGLE_SEARCH_COUNTRY", "us"),
        }
        seconds = settings.number(values, "GOOGLE_SEARCH_TIMEOUT_SECONDS", 30, least=0.1)
        url = settings.text(values, "SERPER_URL", "https://google.serper.dev")
        self._service = JsonService(self.name, "SERPER_URL", url, seconds=seconds, headers={"X-API-KEY": key})

    async def start(self) -> None:
        """Open the connections."""
        await self._service.start()

    async def close(self) -> None:
        """Close the connections."""
        await self._service.close()

    def usage(self) -> str:
        """Return one line on how to call it."""
        return "Search the web by writing your query between <search> and </search>, or in a fence `search`."

    def parse(self, action: str) -> str | None:
        """Return the first query in the first format that matches, unless it is too long."""
        for pattern in _PATTERNS:
            if found := find_all(pattern, action):
                query = found[0].strip()
                if query and len(query) <= MAX_QUERY:
                    return query
        return None

    async def call(self, call: ToolCall) -> ToolResult:
        """Return the search results."""
        query = call.parsed.replace('"', "")
        status, answer = await self._service.post("search", {"q": query, "num": self._num_results, **self._locale})
        if status != 200:
            # Any text is a valid query, so the key or the credit must be at fault.
            raise ToolFailedError(f"google_search: the service answered {status}: {answer.get('message')}.")
        found = _format_results(answer.get("organic") or [], self._num_results)
        return ToolResult(encodable(f"<result>Search results for '{call.parsed}':\n\n{found}</result>"))


def _format_results(pages: Sequence[Mapping[str, object]], num_results: int) -> str:
    pieces: dict[str, str] = {}
    for number, page in enumerate(pages[:num_results], start=1):
        snippet = str(page.get("snippet") or page.get("description") or "").strip()
        if snippet and snippet not in pieces:
            cut = snippet if len(snippet) <= _MAX_SNIPPET else f"{snippet[:_MAX_SNIPPET]}..."
            title, link = (
                str(page.get(name) or other).strip() for name, other in (("title", "No title"), ("link", ""))
            )
            pieces[snippet] = f"**Page {number}**\n**Title:** {title}\n**Link:** {link}\n**Snippet:** {cut}\n"
    return "\n".join(pieces.values()) or "No search results found."
