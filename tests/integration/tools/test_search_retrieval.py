"""The tool search_retrieval with the service of `turnmill retriever`."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import pytest_asyncio

from turnmill.core.errors import ToolFailedError
from turnmill.core.ports import free_port
from turnmill.testing.tool_calls import Dialogue, make_tool

DOCUMENTS = [
    {"id": "1", "contents": "Mill\nA mill grinds grain between two stones."},
    {"id": "2", "contents": "Whale\nA whale is the largest animal of the sea."},
    {"id": "3", "contents": "Bread\nBread is made of ground grain and water."},
]


@pytest.fixture(scope="module")
def retriever(tmp_path_factory) -> Iterator[str]:
    corpus = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    corpus.write_text("\n".join(map(json.dumps, DOCUMENTS)))
    port = free_port()
    command = [sys.executable, "-m", "turnmill.cli.main", "retriever", str(corpus), "--port", str(port)]
    process = subprocess.Popen([*command, "--topk", "2"])
    address = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and process.poll() is None:
            try:
                httpx.get(f"{address}/health").raise_for_status()
                break
            except httpx.TransportError:
                time.sleep(0.05)
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest_asyncio.fixture
async def dialogue(retriever: str) -> AsyncIterator[Dialogue]:
    tool = make_tool("search_retrieval", RETRIEVER_URL=f"{retriever}/retrieve")
    await tool.start()
    yield Dialogue(tool)
    await tool.close()


@pytest_asyncio.fixture
async def unreachable() -> AsyncIterator[Dialogue]:
    tool = make_tool("search_retrieval", RETRIEVER_URL=f"http://127.0.0.1:{free_port()}/retrieve")
    await tool.start()
    yield Dialogue(tool)
    await tool.close()


@pytest.mark.feature("verl-tool", "search")
async def test_documents_are_numbered_with_their_titles(dialogue: Dialogue):
    assert await dialogue.say("<search>ground grain</search>") == (
        "\n\n<information>Doc 1(Title: Bread) Bread is made of ground grain and water.\n"
        "Doc 2(Title: Mill) A mill grinds grain between two stones.</information>\n\n"
    )
    assert (dialogue.result.done, dialogue.result.valid) == (False, True)


async def test_a_query_without_results_is_an_observation(dialogue: Dialogue):
    assert await dialogue.say("<search>zebra</search>") == "\n\n<information></information>\n\n"


def test_the_service_returns_documents_with_or_without_scores(retriever: str):
    request = {"queries": ["whale", "grain"], "topk": 1, "return_scores": True}

    scored = httpx.post(f"{retriever}/retrieve", json=request).json()["result"]
    bare = httpx.post(f"{retriever}/retrieve", json={"queries": ["grain"]}).json()["result"]

    assert [[found["document"]["id"] for found in ranked] for ranked in scored] == [["2"], ["3"]]
    assert all(found["score"] > 0 for ranked in scored for found in ranked)
    assert [[document["id"] for document in ranked] for ranked in bare] == [["3", "1"]]


@pytest.mark.parametrize("body", [{}, {"queries": "x"}, {"queries": [1]}, {"queries": ["x"], "topk": -1}])
def test_an_invalid_request_is_refused(retriever: str, body):
    assert httpx.post(f"{retriever}/retrieve", json=body).status_code == 422


async def test_a_retriever_that_is_down_fails_the_call(unreachable: Dialogue):
    with pytest.raises(ToolFailedError, match=r"the retriever at RETRIEVER_URL .* failed"):
        await unreachable.say("<search>grain</search>")


async def test_an_invalid_response_of_a_retriever_fails_the_call(retriever: str):
    tool = make_tool("search_retrieval", RETRIEVER_URL=f"{retriever}/health")
    await tool.start()
    try:
        with pytest.raises(ToolFailedError, match="it answered 405"):
            await Dialogue(tool).say("<search>grain</search>")
    finally:
        await tool.close()


async def test_a_retriever_that_is_down_may_count_as_empty():
    address = f"http://127.0.0.1:{free_port()}/retrieve"
    tool = make_tool("search_retrieval", RETRIEVER_URL=address, RETRIEVER_ON_FAILURE="empty")
    await tool.start()
    try:
        assert await Dialogue(tool).say("<search>grain</search>") == "\n\n<information></information>\n\n"
    finally:
        await tool.close()
