"""What the operator makes of answers that no run of ours gives: pods of runs hold other people's code."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from turnmill_operator.run_progress import MAX_ANSWER_BYTES, _ask
from turnmill_operator.views import Progress

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def ask(session: aiohttp.ClientSession, handler) -> Progress:
    app = web.Application()
    app.router.add_get("/progress", handler)
    async with TestServer(app) as server:
        return await _ask(session, str(server.make_url("/progress")), Progress(), NOW)


async def test_a_run_tells_how_far_it_is(session):
    async def tell(request: web.Request) -> web.Response:
        return web.json_response({"step": 3, "steps": 20})

    answer = await ask(session, tell)

    assert answer.values is not None
    assert (answer.values.step, answer.values.steps) == (3, 20)


@pytest.mark.parametrize("body", [b"[" * 60_000, b"[1, 2]", b"no JSON", b'{"step": "many"}'])
async def test_an_answer_that_is_no_progress_counts_as_silence(session, body):
    async def tell(request: web.Request) -> web.Response:
        return web.Response(body=body)

    assert await ask(session, tell) == Progress(silent_since=NOW)


async def test_an_answer_without_end_is_read_no_further_than_progress_may_be_long(session):
    sent = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while sent < 400 * MAX_ANSWER_BYTES:
            await response.write(b" " * MAX_ANSWER_BYTES)
            sent += MAX_ANSWER_BYTES
        return response

    assert await ask(session, flood) == Progress(silent_since=NOW)
    assert sent < 400 * MAX_ANSWER_BYTES
