"""The tool google_search with a service that answers as Serper does."""

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import web

from support.web_site import WebSite
from turnmill.core.errors import ToolFailedError, ToolUnavailableError
from turnmill.testing.tool_calls import Dialogue, make_tool

PAGES = [
    {"title": "Mill", "link": "http://mill.example", "snippet": "It grinds.", "position": 1},
    {"title": "Copy", "link": "http://copy.example", "snippet": "It grinds.", "position": 2},
    {"title": "Empty", "link": "http://empty.example", "position": 3},
    {"title": "Whale", "link": "http://whale.example", "snippet": "w" * 1200, "position": 4},
]


def answer(request: web.Request) -> web.Response:
    if request.headers.get("X-API-KEY") != "secret":
        return web.json_response({"message": "Unauthorized.", "statusCode": 403}, status=403)
    return web.json_response({"searchParameters": {}, "organic": PAGES})


@pytest_asyncio.fixture
async def service() -> AsyncIterator[WebSite]:
    async with WebSite({"/search": answer}) as site:
        yield site


@pytest_asyncio.fixture
async def google(service: WebSite) -> AsyncIterator[Dialogue]:
    tool = make_tool("google_search", SERPER_API_KEY="secret", SERPER_URL=service.url, GOOGLE_SEARCH_RESULTS="4")
    await tool.start()
    yield Dialogue(tool)
    await tool.close()


async def test_pages_are_listed_with_title_link_and_snippet_without_duplicates(google: Dialogue, service: WebSite):
    assert await google.say('<search>a "mill"</search>') == (
        "<result>Search results for 'a \"mill\"':\n\n"
        "**Page 1**\n**Title:** Mill\n**Link:** http://mill.example\n**Snippet:** It grinds.\n\n"
        f"**Page 4**\n**Title:** Whale\n**Link:** http://whale.example\n**Snippet:** {'w' * 1000}...\n</result>"
    )
    (method, path, body) = service.requests[-1]
    assert (method, path, json.loads(body)) == ("POST", "/search", {"q": "a mill", "num": 4, "hl": "en", "gl": "us"})


async def test_a_query_without_results_is_an_observation(google: Dialogue, service: WebSite):
    service.pages["/search"] = lambda request: web.json_response({"organic": []})

    assert "No search results found." in await google.say("google: nothing")


@pytest.mark.parametrize(
    ("action", "query"),
    [
        ("<search>a</search><search>b</search>", "a"),
        ("```search\na b\n```", "a b"),
        ("Search: a b\nmore", "a b"),
        ("google: a", "a"),
        ("<search> </search>", None),
        (f"<search>{'a' * 501}</search>", None),
        ("text", None),
    ],
)
def test_the_first_query_is_taken(action, query):
    assert make_tool("google_search", SERPER_API_KEY="secret").parse(action) == query


@pytest.mark.parametrize("status", [400, 403, 429, 500])
async def test_an_error_status_of_the_service_fails_the_call(google: Dialogue, service: WebSite, status: int):
    service.pages["/search"] = lambda request: web.json_response({"message": "Not enough credits"}, status=status)

    with pytest.raises(
        ToolFailedError, match=f"^google_search: the service.* answered {status}.*Not enough credits"
    ) as caught:
        await google.say("<search>a</search>")
    assert "secret" not in str(caught.value)


def test_a_missing_key_is_refused_when_the_tool_is_created():
    with pytest.raises(ToolUnavailableError, match="SERPER_API_KEY is missing"):
        make_tool("google_search")
