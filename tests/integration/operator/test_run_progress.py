"""Responses to the operator's requests for progress, also malformed ones: pods of runs execute users' code."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from turnmill_operator.run_progress import MAX_RESPONSE_BYTES, _fetch_progress
from turnmill_operator.views import RunProgress

RUN = "/runs/team-a/job-01234567"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def fetch(session: aiohttp.ClientSession, handler) -> RunProgress:
    app = web.Application()
    app.router.add_get("/progress", handler)
    async with TestServer(app) as server:
        url = str(server.make_url("/progress"))
        return await _fetch_progress(session, url, RUN, 2, before=RunProgress(), now=NOW)


async def test_progress_of_a_run_is_fetched(session):
    async def respond(request: web.Request) -> web.Response:
        return web.json_response({"step": 3, "steps": 20, "run": RUN, "attempt": 2})

    answer = await fetch(session, respond)

    assert answer.values is not None
    assert (answer.values.step, answer.values.steps) == (3, 20)


OF_ANOTHER_RUN = b'{"step": 3, "run": "/runs/team-b/job-89abcdef", "attempt": 2}'


@pytest.mark.parametrize("body", [b"[" * 60_000, b"[1, 2]", b"no JSON", b'{"step": "many"}', OF_ANOTHER_RUN])
async def test_an_invalid_response_counts_as_unreachable(session, body):
    async def respond(request: web.Request) -> web.Response:
        return web.Response(body=body)

    assert await fetch(session, respond) == RunProgress(unreachable_since=NOW)


async def test_an_endless_response_is_read_only_up_to_the_limit(session):
    sent = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while sent < 400 * MAX_RESPONSE_BYTES:
            await response.write(b" " * MAX_RESPONSE_BYTES)
            sent += MAX_RESPONSE_BYTES
        return response

    assert await fetch(session, flood) == RunProgress(unreachable_since=NOW)
    assert sent < 400 * MAX_RESPONSE_BYTES
