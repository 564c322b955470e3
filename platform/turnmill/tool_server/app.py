"""The HTTP API of a tool server, as verl-tool's clients know it."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

from fastapi import FastAPI, Header, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from turnmill import __version__
from turnmill.core.errors import ToolError
from turnmill.observability.tool_metrics import ToolMetrics
from turnmill.tool_server.answers import Answer
from turnmill.tool_server.calls import RELEASE_SECONDS, Action, Calls
from turnmill.tool_server.completions import Completions, add_completions
from turnmill.tool_server.messages import ActionRequest, Detail, Failure, Health, ObservationResponse
from turnmill.tool_server.requests import ARRIVED, Admission, BodyError, BodyTooLargeError, ProcessTime, read_body
from turnmill.tool_server.responses import REFUSALS, body_schema, failure, json_response, refuse_body, refuse_size
from turnmill.tool_server.settings import ServerSettings

log = logging.getLogger(__name__)

# Claims are given back within RELEASE_SECONDS of being told.
DRAIN_SECONDS = RELEASE_SECONDS + 0.5

TIMED_OUT = "Processing failed: 500: Action processing failed: "
"""verl-tool's words for calls that took longer than `--request_timeout`."""

DeadlineSeconds = Annotated[
    float | None,
    Header(
        alias="X-Deadline-Seconds",
        description="How long the client will wait from now on: calls that take longer are given up and fail with 503.",
        gt=0,
        le=86400,
        allow_inf_nan=False,
    ),
]


class Worker:
    """One process of a server: what it does, what it holds back, and whether it takes more."""

    def __init__(
        self,
        settings: ServerSettings,
        calls: Calls,
        metrics: ToolMetrics,
        *,
        before_scrape: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.settings = settings
        self._before_scrape = before_scrape
        self.calls = calls
        self.metrics = metrics
        self.admission = Admission(settings.max_concurrent_requests)
        self.stopping = False
        self._started = time.monotonic()
        self._requests: set[asyncio.Task[Any]] = set()

    @property
    def uptime_seconds(self) -> float:
        """Since the worker became ready."""
        return time.monotonic() - self._started

    async def observe(self, request: Request, deadline_seconds: float | None) -> Response:
        """Do the calls of one request."""
        body = await read_body(request, ActionRequest, max_bytes=self.settings.max_request_bytes)
        actions = body.to_actions()
        self.metrics.calls_in_flight.inc(len(actions))
        task = asyncio.current_task()
        assert task is not None
        self._requests.add(task)
        try:
            async with self.admission.enter():
                queue_seconds = time.perf_counter() - request.scope[ARRIVED]
                self.metrics.queue_seconds.observe(queue_seconds)
                left = None if deadline_seconds is None else max(0.0, deadline_seconds - queue_seconds)
                return await self._answer(actions, queue_seconds, left)
        finally:
            self._requests.discard(task)
            self.metrics.calls_in_flight.dec(len(actions))

    async def _answer(self, actions: Sequence[Action], queue_seconds: float, left: float | None) -> Response:
        begun = time.perf_counter()
        allowed = self.settings.request_timeout
        limits = [limit for limit in (allowed, left) if limit is not None]
        deadline = asyncio.get_running_loop().time() + min(limits) if limits else None
        try:
            answers = await self.calls.do(actions, deadline=deadline)
        except TimeoutError:
            if left is not None and (allowed is None or left < allowed):
                self.metrics.failures.labels("timeout").inc()
                return failure(f"The calls did not end within the client's deadline, {left:.3g} s.", "timeout")
            return JSONResponse({"detail": TIMED_OUT}, status_code=500)
        errors = [answer for answer in answers if isinstance(answer, ToolError)]
        if errors:
            share = f"{len(errors)} of {len(answers)} calls failed: " if len(answers) > 1 else ""
            return failure(f"{share}{errors[0]}", errors[0].cause)
        done = [answer for answer in answers if isinstance(answer, Answer)]
        return json_response(
            {
                "observations": [answer.observation for answer in done],
                "dones": [answer.done for answer in done],
                "valids": [answer.valid for answer in done],
                "processing_time_ms": (time.perf_counter() - begun) * 1000,
                "queue_time_ms": queue_seconds * 1000,
            }
        )

    async def drain(self) -> None:
        """Give up the requests that are still there, and wait until their claims are given back."""
        for request in self._requests:
            request.cancel()
        if self._requests:
            await asyncio.wait(self._requests, timeout=DRAIN_SECONDS)

    async def report_regularly(self) -> None:
        """Log the numbers of calls from time to time, if there were any."""
        before = 0
        while self.settings.log_interval:
            await asyncio.sleep(self.settings.log_interval)
            done, failed = self.calls.num_done, self.calls.num_failed
            if done + failed != before:
                fields = {"done": done, "failed": failed, "active_requests": self.admission.num_active}
                log.info("Calls so far", extra=fields | {"waiting_requests": self.admission.num_waiting})
            before = done + failed

    def health(self) -> Health:
        """What /health tells."""
        return Health(
            concurrent_requests=self.admission.num_active,
            thread_pool_size=self.settings.num_threads,
            active_tasks=self.admission.num_active + self.admission.num_waiting,
            max_concurrent=self.settings.max_concurrent_requests,
            tools=list(self.calls.tools.names),
            uptime_seconds=self.uptime_seconds,
        )

    async def scrape(self) -> bytes:
        """What Prometheus is told."""
        if self._before_scrape is not None:
            await self._before_scrape()
        return self.metrics.text()

    def json_metrics(self) -> dict[str, Any]:
        """verl-tool's metrics; what is cached there is recorded in the store here."""
        return {
            "active_requests": self.admission.num_active,
            "cached_responses": 0,
            "tools_initialized": len(self.calls.tools.names),
            "uptime_seconds": self.uptime_seconds,
            "config": {
                "max_concurrent": self.settings.max_concurrent_requests,
                "timeout": self.settings.request_timeout,
                "hashing_enabled": self.settings.enable_hashing,
            },
        }


def build_app(worker: Worker, completions: Completions | None = None) -> FastAPI:
    """The routes of a worker; those of completions where there is a model behind it."""
    app = FastAPI(title="turnmill tool server", version=__version__)
    app.add_middleware(ProcessTime)
    app.add_exception_handler(BodyError, refuse_body)
    app.add_exception_handler(BodyTooLargeError, refuse_size)

    @app.post(
        "/get_observation",
        response_model=ObservationResponse,
        responses=REFUSALS | {500: {"model": Detail, "description": "The calls took longer than --request_timeout"}},
        openapi_extra=body_schema(ActionRequest),
    )
    async def get_observation(request: Request, deadline_seconds: DeadlineSeconds = None) -> Response:
        """Do actions; the answers are in the order of the request."""
        return await worker.observe(request, deadline_seconds)

    @app.get("/health")
    async def health() -> Health:
        """Tell that the server lives; /readyz tells whether it takes calls."""
        return worker.health()

    @app.get("/readyz", responses={503: {"model": Failure, "description": "The server stops"}})
    async def readyz() -> Response:
        """Tell whether the server takes calls."""
        if worker.stopping:
            return failure("The server stops.", "stopping")
        return JSONResponse({"status": "ready"})

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics(request: Request) -> Response:
        """Tell Prometheus; verl-tool's JSON object with `Accept: application/json`."""
        if "application/json" in request.headers.get("accept", ""):
            return JSONResponse(worker.json_metrics())
        return Response(await worker.scrape(), media_type=CONTENT_TYPE_LATEST)

    if completions is not None:
        add_completions(app, completions)
    return app
