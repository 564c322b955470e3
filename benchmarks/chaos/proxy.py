"""A proxy between agent loops and tools: some calls fail, or those of one trajectory are never answered."""

import asyncio
import json
import random
import threading
from typing import Any

import aiohttp
from aiohttp import web

START_SECONDS = 20.0
BEFORE_SHARE, AFTER_SHARE = 0.075, 0.075
"""Calls that are answered with 503, and calls whose connection closes after they took effect."""


class ToolProxy:
    """Forwards every POST to another address; it does no harm until it is told to."""

    def __init__(self, target: str, chance: random.Random) -> None:
        self.fails_calls = False
        self.silences_next = False
        """Whether the trajectory of the next call gets no answer any more."""

        self.num_failed = 0
        self.url = ""
        self._target = target
        self._chance = chance
        self.unanswered: set[str] = set()
        """Trajectories whose calls get no answer any more."""

        self._ready = threading.Event()

    def start(self) -> str:
        """Listen on a free port of this machine, and return the address."""
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        if not self._ready.wait(START_SECONDS):
            raise RuntimeError("The proxy did not start.")
        return self.url

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as self._session:
            self._ready.set()
            await asyncio.Event().wait()

    async def _handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        is_call = request.method == "POST"
        if is_call and self._is_silent(trajectory_of(body)):
            await asyncio.Event().wait()
        number = self._chance.random() if is_call and self.fails_calls else 1.0
        if number < BEFORE_SHARE:
            self.num_failed += 1
            return web.Response(status=503)
        answer = await self._forward(request, body)
        if number < BEFORE_SHARE + AFTER_SHARE and request.transport is not None:
            self.num_failed += 1
            request.transport.abort()
        return answer

    async def _forward(self, request: web.Request, body: bytes) -> web.Response:
        url = f"{self._target}/{request.match_info['path']}"
        headers = {name: value for name, value in request.headers.items() if name.lower() not in ("host", "connection")}
        try:
            async with self._session.request(request.method, url, data=body, headers=headers) as answer:
                return web.Response(
                    status=answer.status, body=await answer.read(), headers={"Content-Type": answer.content_type}
                )
        except aiohttp.ClientError:
            return web.Response(status=503)

    def _is_silent(self, trajectory: str) -> bool:
        if self.silences_next and trajectory:
            self.unanswered.add(trajectory)
            self.silences_next = False
            self.num_failed += 1
        return trajectory in self.unanswered


def trajectory_of(body: bytes) -> str:
    """Return the trajectory that a call is of; empty if it names none, or only tells that one has ended."""
    try:
        fields: dict[str, Any] = json.loads(body)
    except ValueError:
        return ""
    if fields.get("finish") == [True]:
        return ""
    return str(fields.get("trajectory") or (fields.get("trajectory_ids") or [""])[0])
