"""A proxy in front of a tool server that fails a share of the calls at every try."""

import asyncio
import json
import random
import threading
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp import web

ERROR_TEXT = "forced failure: out of order"
"""The error of failing calls, which no tool returns."""

START_SECONDS = 20.0


class FaultyProxy:
    """Forwards `POST /get_observation`; a call that is selected to fail gets 503 or a closed connection at every try.

    The seed and the names of trajectory and call select the calls that fail, the same ones in every attempt.
    """

    def __init__(self, server_url: str, *, share: float, seed: int = 0) -> None:
        self.share, self.seed = share, seed
        self.url = ""
        self.calls: set[tuple[str, str]] = set()
        """Trajectory and call of every call, without repetitions."""

        self.failed: set[tuple[str, str]] = set()
        self._server_url = server_url
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(START_SECONDS), "the proxy did not start"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        app = web.Application()
        app.router.add_post("/get_observation", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        (address,) = runner.addresses
        self.url = f"http://127.0.0.1:{address[1]}"
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as self._client:
            self._ready.set()
            await self._stop.wait()
        await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        call = self._call(json.loads(raw))
        if call is not None:
            self.calls.add(call)
            if (chance := random.Random(f"{self.seed}/{'/'.join(call)}")).random() < self.share:
                self.failed.add(call)
                return _failure(request, cut=chance.random() < 0.5)
        async with self._client.post(
            self._server_url, data=raw, headers={"Content-Type": "application/json"}
        ) as answer:
            return web.Response(body=await answer.read(), status=answer.status, content_type=answer.content_type)

    def _call(self, body: dict[str, Any]) -> tuple[str, str] | None:
        """Return the trajectory's name without its attempt, and the call; None if a trajectory is only finished."""
        (trajectory,), (extra,) = body["trajectory_ids"], body["extra_fields"]
        if body["finish"][0]:
            return None
        return "-".join(trajectory.split("-")[-4:-1]), extra["call_id"]


def _failure(request: web.Request, *, cut: bool) -> web.Response:
    if cut:
        assert request.transport is not None
        request.transport.abort()
    return web.json_response({"error": ERROR_TEXT}, status=503)
