"""HTTP API of a tool server, compatible with verl-tool's clients."""

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import ClientDisconnect

from turnmill import __version__
from turnmill.core.errors import ToolError
from turnmill.core.http_access import AccessMiddleware, read_token
from turnmill.core.http_connections import answer_nobody
from turnmill.observability.tool_metrics import ToolMetrics
from turnmill.tool_server.call_result import CallResult, tool_error_result
from turnmill.tool_server.call_time import CallTime
from turnmill.tool_server.calls import RELEASE_SECONDS, Action, CallExecutor
from turnmill.tool_server.completions import Completions, add_completions
from turnmill.tool_server.executions import Executions
from turnmill.tool_server.request_time import AnswerSeconds, DeadlineSeconds, RequestTime
from turnmill.tool_server.requests import (
    ARRIVED,
    Admission,
    BodyError,
    BodyTimeoutError,
    BodyTooLargeError,
    ProcessTimeMiddleware,
    read_body,
)
from turnmill.tool_server.responses import (
    REFUSALS,
    body_schema,
    call_failure,
    failure,
    json_response,
    refuse_body,
    refuse_size,
    refuse_slow_body,
)
from turnmill.tool_server.schemas import ActionRequest, Detail, Failure, Health, ObservationResponse
from turnmill.tool_server.settings import ServerSettings

log = logging.getLogger(__name__)

DRAIN_SECONDS = RELEASE_SECONDS + 0.5
"""Time for cancelled requests to release their claims, which takes at most RELEASE_SECONDS."""

TIMEOUT_DETAIL = "Processing failed: 500: Action processing failed: "
"""verl-tool's message for calls that took longer than `--request_timeout`."""


class Worker:
    """State of a server process: requests in progress, queue, and whether it is stopping."""

    def __init__(
        self,
        settings: ServerSettings,
        executor: CallExecutor,
        metrics: ToolMetrics,
        *,
        left_out: Sequence[str] = (),
        before_scrape: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.settings = settings
        self.left_out = tuple(left_out)
        self._before_scrape = before_scrape
        self.executor = executor
        self.executions = Executions(executor)
        self.metrics = metrics
        self.admission = Admission(settings.max_concurrent_requests)
        self.stopping = False
        self._started = time.monotonic()
        self._requests: set[asyncio.Task[object]] = set()

    @property
    def uptime_seconds(self) -> float:
        """Seconds since the worker became ready."""
        return time.monotonic() - self._started

    async def get_observation(self, request: Request, limits: RequestTime) -> Response:
        """Execute the calls of a request when the queue admits it; its body is read only then.

        The client's times bound the queue, the body and the calls.
        """
        task = asyncio.current_task()
        assert task is not None
        self._requests.add(task)
        try:
            async with asyncio.timeout_at(limits.limit):
                return await self._admit(request, limits)
        except TimeoutError:
            if (late := limits.late()) is None:
                raise
            cause, detail = late
            self.metrics.failures.labels(cause).inc()
            return failure(detail, cause)
        finally:
            self._requests.discard(task)

    async def _admit(self, request: Request, limits: RequestTime) -> Response:
        # A request counts as one call until its body is read.
        num_calls = 1
        self.metrics.calls_in_flight.inc(num_calls)
        try:
            async with self.admission.enter():
                queue_seconds = time.perf_counter() - request.scope[ARRIVED]
                self.metrics.queue_seconds.observe(queue_seconds)
                body = await read_body(request, ActionRequest, max_bytes=self.settings.max_request_bytes)
                actions = body.to_actions()
                self.metrics.calls_in_flight.inc(len(actions) - num_calls)
                num_calls = len(actions)
                return await self._respond(actions, queue_seconds, limits)
        finally:
            self.metrics.calls_in_flight.dec(num_calls)

    async def _respond(self, actions: Sequence[Action], queue_seconds: float, limits: RequestTime) -> Response:
        started = time.perf_counter()
        allowed, now = self.settings.request_timeout, asyncio.get_running_loop().time()
        calls_time = CallTime(limits.deadline, latest=None if allowed is None else now + allowed)
        try:
            results = await self.executions.run(actions, calls_time, answer_at=limits.answer_at)
        except ToolError as waits:
            return call_failure(waits)
        except TimeoutError:
            if calls_time.deadline == limits.deadline:
                raise
            return JSONResponse({"detail": TIMEOUT_DETAIL}, status_code=500)
        errors = [result for result in results if isinstance(result, ToolError)]
        if errors and may_repeat(actions, results):
            share = f"{len(errors)} of {len(results)} calls failed: " if len(results) > 1 else ""
            error = max(errors, key=lambda error: error.is_final)
            return call_failure(error, f"{share}{error}")
        done = [
            tool_error_result(self.executor.label(action), result, cause=result.cause)
            if isinstance(result, ToolError)
            else result
            for action, result in zip(actions, results, strict=True)
        ]
        # The calls of a request wait for the sandbox at the same time.
        waiting_seconds = max((result.waiting_seconds for result in done), default=0.0)
        return json_response(
            {
                "observations": [result.observation for result in done],
                "dones": [result.done for result in done],
                "valids": [result.valid for result in done],
                "processing_time_ms": max(0.0, time.perf_counter() - started - waiting_seconds) * 1000,
                "queue_time_ms": (queue_seconds + waiting_seconds) * 1000,
                "versions": [result.version for result in done],
            }
        )

    async def drain(self) -> None:
        """Cancel requests in progress, and wait until their claims are released."""
        tasks = self._requests | self.executions.tasks
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=DRAIN_SECONDS)

    async def log_progress(self) -> None:
        """Log the numbers of calls every `log_interval` seconds, if there were any."""
        before = 0
        while self.settings.log_interval:
            await asyncio.sleep(self.settings.log_interval)
            done, failed = self.executor.num_done, self.executor.num_failed
            if done + failed != before:
                fields = {"done": done, "failed": failed, "active_requests": self.admission.num_active}
                log.info("Calls so far", extra=fields | {"waiting_requests": self.admission.num_waiting})
            before = done + failed

    def health(self) -> Health:
        """Return the body of /health."""
        return Health(
            concurrent_requests=self.admission.num_active,
            thread_pool_size=self.settings.num_threads,
            active_tasks=self.admission.num_active + self.admission.num_waiting,
            max_concurrent=self.settings.max_concurrent_requests,
            tools=list(self.executor.tools.names),
            uptime_seconds=self.uptime_seconds,
        )

    async def prometheus_metrics(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        if self._before_scrape is not None:
            await self._before_scrape()
        return self.metrics.text()

    def json_metrics(self) -> dict[str, object]:
        """Return verl-tool's metrics; it caches responses, which are recorded in the store here."""
        return {
            "active_requests": self.admission.num_active,
            "cached_responses": 0,
            "tools_initialized": len(self.executor.tools.names),
            "uptime_seconds": self.uptime_seconds,
            "config": {
                "max_concurrent": self.settings.max_concurrent_requests,
                "timeout": self.settings.request_timeout,
                "hashing_enabled": self.settings.enable_hashing,
            },
        }


def may_repeat(actions: Sequence[Action], results: Sequence[CallResult | ToolError]) -> bool:
    """Return True if a client may send a request again: no call without an id has been executed."""
    return all(
        isinstance(result, ToolError) or action.key.call_id for action, result in zip(actions, results, strict=True)
    )


def build_app(worker: Worker, completions: Completions | None = None) -> FastAPI:
    """Build the HTTP application of a worker, with the routes of completions if there is a model server.

    Raises SettingsError if the token cannot be read.
    """
    settings = worker.settings
    app = FastAPI(title="turnmill tool server", version=__version__)
    app.add_middleware(
        AccessMiddleware,
        allowed_hosts=(settings.host, socket.getfqdn(), *settings.allow_host),
        token=None if settings.token_file is None else read_token(settings.token_file),
    )
    app.add_middleware(ProcessTimeMiddleware)
    app.add_exception_handler(BodyError, refuse_body)
    app.add_exception_handler(BodyTooLargeError, refuse_size)
    app.add_exception_handler(BodyTimeoutError, refuse_slow_body)
    app.add_exception_handler(ClientDisconnect, answer_nobody)

    @app.post(
        "/get_observation",
        response_model=ObservationResponse,
        responses=REFUSALS | {500: {"model": Detail, "description": "The calls took longer than --request_timeout"}},
        openapi_extra=body_schema(ActionRequest),
    )
    async def get_observation(
        request: Request, deadline_seconds: DeadlineSeconds = None, answer_seconds: AnswerSeconds = None
    ) -> Response:
        """Execute actions; observations are in the order of the request."""
        return await worker.get_observation(request, RequestTime(deadline_seconds, answer_seconds))

    @app.get("/health")
    async def health() -> Health:
        """Report that the server is alive; /readyz reports whether it accepts calls."""
        return worker.health()

    @app.get("/readyz", responses={503: {"model": Failure, "description": "The server stops"}})
    async def readyz() -> Response:
        """Report whether the server accepts calls."""
        if worker.stopping:
            return failure("The server stops.", "stopping")
        return JSONResponse({"status": "ready"})

    if settings.metrics_port is None:
        _add_metrics(app, worker)
    if completions is not None:
        add_completions(app, completions)
    return app


def build_metrics_app(worker: Worker) -> FastAPI:
    """Build the HTTP application of the port for metrics."""
    app = FastAPI(title="turnmill tool server metrics", version=__version__)
    _add_metrics(app, worker)
    return app


def _add_metrics(app: FastAPI, worker: Worker) -> None:
    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics(request: Request) -> Response:
        """Return metrics in Prometheus' text format; with `Accept: application/json`, verl-tool's JSON object."""
        if "application/json" in request.headers.get("accept", ""):
            return JSONResponse(worker.json_metrics())
        return Response(await worker.prometheus_metrics(), media_type=CONTENT_TYPE_LATEST)
