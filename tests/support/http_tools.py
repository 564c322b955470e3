"""A tool server with scripted answers that records its requests, for tests of clients."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from support.loopback_site import LoopbackSite

Answer = str | Mapping[str, Any] | web.Response | Exception
"""An observation, a whole response, or an error, which closes the connection."""


class HttpTools(LoopbackSite):
    """Serves `POST /get_observation` on a loopback port."""

    def __init__(self, answer: Callable[[dict[str, Any]], Answer], *, done: bool = False, valid: bool = True) -> None:
        """Take a function that answers a call: a mapping with its action, trajectory and extra fields."""
        super().__init__()
        self.calls: list[dict[str, Any]] = []
        self.finished: list[str] = []
        self.bodies: list[str] = []
        self.in_flight = self.max_in_flight = 0
        self.done, self.valid = done, valid
        self.call_ids = True
        """Whether it knows calls by their `call_id`, as turnmill's server does and verl-tool's does not."""

        self.versions = False
        """Whether answers have versions."""

        self._answer = answer

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/health":
            return web.json_response({"status": "healthy"} | ({"call_ids": True} if self.call_ids else {}))
        if (request.method, request.path) != ("POST", "/get_observation"):
            return web.Response(status=404)
        text = await request.text()
        self.bodies.append(text)
        body = json.loads(text)
        (trajectory,), (action,), (extra,) = body["trajectory_ids"], body["actions"], body["extra_fields"]
        if body["finish"][0]:
            self.finished.append(trajectory)
            return web.json_response({"observations": [""], "dones": [True], "valids": [True]})
        call = {**extra, "action": action, "trajectory": trajectory}
        self.calls.append(call)
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            await self.may_answer.wait()
            return self._respond(request, self._answer(call))
        finally:
            self.in_flight -= 1

    def _respond(self, request: web.Request, answer: Answer) -> web.StreamResponse:
        if isinstance(answer, web.Response):
            return answer
        if isinstance(answer, Exception):
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        body = {"observations": [answer], "dones": [self.done], "valids": [self.valid]}
        if self.versions:
            body["versions"] = [f"{len(self.calls)} {self.calls[-1]['call_id']}"]
        return web.json_response(body | {"processing_time_ms": 4.0, "queue_time_ms": 1.0})
