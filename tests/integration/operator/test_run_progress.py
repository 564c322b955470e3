"""Responses to the operator's requests for progress, also malformed ones: pods of runs execute users' code."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from support.ray_jobs import NAMESPACE, raw_ray_job
from turnmill_operator import run_progress
from turnmill_operator.cache import Cache
from turnmill_operator.run_progress import MAX_RESPONSE_BYTES, _fetch_progress, poll_runs
from turnmill_operator.views import ObjectKey, RunProgress
from turnmill_operator.work_queue import WorkQueue

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


def running(number: int) -> dict[str, Any]:
    """Return the RayJob of a running job whose head has a loopback address of its own."""
    cluster = {"state": "ready", "head": {"podIP": f"127.0.0.{number}"}}
    status = {"jobStatus": "RUNNING", "jobDeploymentStatus": "Running", "rayClusterStatus": cluster}
    return raw_ray_job(job=f"job{number}", **status)


async def test_runs_that_do_not_answer_are_polled_apart_and_return_once_they_do(session, monkeypatch):
    asked: list[str] = []
    answering = {"127.0.0.1"}

    async def respond(request: web.Request) -> web.Response:
        asked.append(request.url.host or "")
        if request.url.host not in answering:
            raise web.HTTPBadGateway
        return web.json_response({"step": 3})

    app = web.Application()
    app.router.add_get("/progress", respond)
    cache = Cache()
    for number in (1, 2):
        cache.put_ray_job(running(number))

    async def poll(*, silent: bool) -> list[str]:
        asked.clear()
        await poll_runs(session, cache, WorkQueue(), NOW, silent=silent)
        return sorted(asked)

    async with TestServer(app, host="0.0.0.0") as server:
        monkeypatch.setattr(run_progress, "METRICS_PORT", server.port)
        assert await poll(silent=True) == []
        assert await poll(silent=False) == ["127.0.0.1", "127.0.0.2"]
        assert await poll(silent=False) == ["127.0.0.1"]
        answering.add("127.0.0.2")
        assert await poll(silent=True) == ["127.0.0.2"]
        assert await poll(silent=True) == []
        assert await poll(silent=False) == ["127.0.0.1", "127.0.0.2"]

    found = cache.progress(ObjectKey(NAMESPACE, "job2"), 1).values
    assert found is not None
    assert found.step == 3
