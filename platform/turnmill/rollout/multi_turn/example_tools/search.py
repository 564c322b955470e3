"""A search tool for verl's agent loops, with the names of verl's own: `turnmill retriever` is the service behind it."""

import json
from collections.abc import Sequence

import aiohttp
from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

from turnmill.core.errors import SettingsError, ToolFailedError
from turnmill.tools.search_retrieval import contents_of, format_documents

MAX_QUERIES = 32


class SearchTool(BaseTool):
    """Searches for every query of a call, by one request to the retriever."""

    def __init__(self, config: dict[str, object], tool_schema: OpenAIFunctionToolSchema) -> None:
        """Read `retrieval_service_url`, `topk` (3) and `timeout` in seconds (30). Raises SettingsError."""
        super().__init__(config, tool_schema)
        self._url = str(config.get("retrieval_service_url") or "")
        if not self._url.startswith(("http://", "https://")):
            raise SettingsError(
                f"config.retrieval_service_url ({self._url!r}) of the search tool must be an address such as "
                "http://127.0.0.1:8000/retrieve."
            )
        self._topk = int(str(config.get("topk", 3)))
        self._timeout = float(str(config.get("timeout", 30)))

    async def execute(
        self, instance_id: str, parameters: dict[str, object], **kwargs: object
    ) -> tuple[ToolResponse, float, dict[str, float]]:
        """Return the documents as JSON. Raises ToolFailedError if the retriever fails, which the policy never reads."""
        given = parameters.get("query_list", parameters.get("query"))
        queries = [given] if isinstance(given, str) else given
        if not isinstance(queries, list) or not queries or not all(isinstance(query, str) for query in queries):
            return _response("Error: 'query_list' is missing, empty or no list of texts."), 0.0, {}
        if len(queries) > MAX_QUERIES:
            return _response(f"Error: 'query_list' has {len(queries)} queries, and may have {MAX_QUERIES}."), 0.0, {}
        found = await self._retrieve(queries)
        text = "\n---\n".join(format_documents(documents).strip() for documents in found)
        return _response(text), 0.0, {"num_documents": float(sum(map(len, found)))}

    async def _retrieve(self, queries: Sequence[str]) -> list[list[str]]:
        body = {"queries": list(queries), "topk": self._topk, "return_scores": True}
        timeout = aiohttp.ClientTimeout(total=self._timeout)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.post(self._url, json=body) as response,
            ):
                response.raise_for_status()
                result = (await response.json())["result"]
            found = [[contents_of(document) for document in documents] for documents in result]
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError, AttributeError) as error:
            what = str(error) or type(error).__name__
            raise ToolFailedError(f"search: the retriever at {self._url} failed: {what}.") from error
        if len(found) != len(queries):
            what = f"answered {len(found)} of {len(queries)} queries"
            raise ToolFailedError(f"search: the retriever at {self._url} {what}.")
        return found


def _response(text: str) -> ToolResponse:
    return ToolResponse(text=json.dumps({"result": text}, ensure_ascii=False))
