"""Metrics of a gateway's requests, and of what it asks of the engine and records in the store."""

import time
from collections.abc import Mapping, Sequence
from typing import get_args

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from turnmill.core.trajectory import Turn
from turnmill.gateway.app import APIS
from turnmill.gateway.engine import Engine, Sample
from turnmill.gateway.errors import GatewayError
from turnmill.gateway.pictures import Picture
from turnmill.gateway.records import branch_of
from turnmill.gateway.tree import BranchReason
from turnmill.observability.gateway_metrics import NO_BRANCH, EngineOutcome, GatewayMetrics

GONE = "499"
"""Status of requests whose client went away before the answer began, as nginx has it."""

_NAMES = {api.path: api.path.strip("/") for api in APIS}


def gateway_metrics() -> GatewayMetrics:
    """Return the metrics of a gateway's process, all at zero."""
    return GatewayMetrics(tuple(_NAMES.values()), tuple(filter(None, get_args(BranchReason))))


def metrics_app(metrics: GatewayMetrics) -> Starlette:
    """Return the HTTP application of the port for metrics."""

    async def text(request: Request) -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return Starlette(routes=[Route("/metrics", text)])


class MeasuredApp:
    """An application that measures the requests for an answer."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request and count it."""
        name = next((name for path, name in _NAMES.items() if scope["path"].endswith("/v1" + path)), None)
        if name is None:
            await self._app(scope, receive, send)
            return
        status = GONE

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        started = time.perf_counter()
        try:
            with self._metrics.requests_in_flight.track_inprogress():
                await self._app(scope, receive, send_counted)
        finally:
            self._metrics.requests.labels(name, status).inc()
            self._metrics.request_seconds.labels(name).observe(time.perf_counter() - started)


class MeasuredEngine:
    """An engine whose requests, time and tokens are counted."""

    def __init__(self, engine: Engine, metrics: GatewayMetrics) -> None:
        self._engine = engine
        self._metrics = metrics

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Mapping[str, object],
        *,
        trajectory: str,
        sample: int,
        pictures: Sequence[Picture] = (),
    ) -> Sample:
        """Return one response to a prompt, and count it."""
        started = time.perf_counter()
        outcome: EngineOutcome = "failed"
        try:
            answer = await self._engine.generate(
                prompt_ids, sampling, trajectory=trajectory, sample=sample, pictures=pictures
            )
            outcome = "done"
        except GatewayError as error:
            outcome = "refused" if error.status < 500 else "failed"
            raise
        finally:
            self._metrics.engine_requests.labels(outcome).inc()
        self._metrics.engine_seconds.observe(time.perf_counter() - started)
        self._metrics.tokens.labels("prompt").inc(len(prompt_ids))
        self._metrics.tokens.labels("response").inc(len(answer.token_ids))
        return answer


def count_turn(metrics: GatewayMetrics, turn: Turn) -> None:
    """Count a turn that was recorded."""
    metrics.turns.labels(branch_of(turn) or NO_BRANCH).inc()
