"""Worker process of a tool server: opens the worker, serves HTTP, and shuts down on a signal."""

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI

from turnmill.core.http_connections import (
    BACKLOG,
    TimedHttpProtocol,
    UvicornServer,
    event_loop_factory,
    raise_open_files_limit,
)
from turnmill.core.supervisor import OnReady
from turnmill.observability import logs
from turnmill.tool_server.app import Worker, build_metrics_app
from turnmill.tool_server.factory import open_worker
from turnmill.tool_server.settings import ServerSettings
from turnmill.tool_server.threads import ToolThreads

KEEP_ALIVE_SECONDS = 30
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_worker(
    settings: ServerSettings,
    listeners: Sequence[socket.socket],
    *,
    on_ready: OnReady,
    stop_when_readable: int | None = None,
) -> None:
    """Serve in this process, on a listener for calls and perhaps one for metrics.

    `on_ready` is called when calls are accepted, with the names of the tools that had to be left out. When the
    descriptor `stop_when_readable` becomes readable, stop as on a signal.
    """
    raise_open_files_limit()
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        runner.run(_serve(settings, listeners, on_ready, stop_when_readable))


async def _serve(
    settings: ServerSettings,
    listeners: Sequence[socket.socket],
    on_ready: OnReady,
    stop_when_readable: int | None,
) -> None:
    stop = StopHandler()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ToolThreads(settings.num_threads))
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop, number)
    if stop_when_readable is not None:
        loop.add_reader(stop_when_readable, _stop_once, stop, stop_when_readable)
    try:
        async with open_worker(settings) as (worker, app):
            await _serve_http(worker, app, listeners, stop, on_ready)
    except asyncio.CancelledError:
        if not stop.sources:
            raise
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


def _stop_once(stop: "StopHandler", descriptor: int) -> None:
    asyncio.get_running_loop().remove_reader(descriptor)
    stop(descriptor)


async def _serve_http(
    worker: Worker, app: FastAPI, listeners: Sequence[socket.socket], stop: "StopHandler", on_ready: OnReady
) -> None:
    server = UvicornServer(
        uvicorn.Config(
            app,
            http=TimedHttpProtocol,
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            # Typed as an integer, but handed to asyncio, which takes fractions.
            timeout_graceful_shutdown=worker.settings.grace_seconds,  # type: ignore[arg-type]
            ssl_certfile=worker.settings.tls_cert_file,
            ssl_keyfile=worker.settings.tls_key_file,
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listeners[0]]))
    stop.attach(worker, server)
    logging_progress = asyncio.create_task(worker.log_progress())
    try:
        while not (server.started or serving.done()):  # noqa: ASYNC110 (uvicorn has no event for it)
            await asyncio.sleep(0.005)
        if server.started:
            on_ready(tuple(worker.left_out))
        async with _serving_metrics(worker, listeners[1:]):
            await serving
        # uvicorn has cancelled requests that exceeded the grace period; their claims are still being released.
        await worker.drain()
    finally:
        logging_progress.cancel()


@asynccontextmanager
async def _serving_metrics(worker: Worker, listeners: Sequence[socket.socket]) -> AsyncIterator[None]:
    if not listeners:
        yield
        return
    app = build_metrics_app(worker)
    server = UvicornServer(
        uvicorn.Config(app, http=TimedHttpProtocol, ws="none", log_config=None, access_log=False, lifespan="off")
    )
    serving = asyncio.create_task(server.serve(sockets=list(listeners)))
    try:
        yield
    finally:
        server.should_exit = True
        await serving


class StopHandler:
    """Cancels the start, or shuts a running server down; a second signal of the same kind stops it at once.

    Ctrl-C reaches workers both from the terminal and, as another signal, from their parent; that does not count as two.
    """

    def __init__(self) -> None:
        self.sources: set[int] = set()
        self._task = asyncio.current_task()
        self._server: uvicorn.Server | None = None
        self._worker: Worker | None = None

    def attach(self, worker: Worker, server: uvicorn.Server) -> None:
        """Shut this server down on signals from now on."""
        self._worker, self._server = worker, server

    def __call__(self, source: int) -> None:
        is_repeated = source in self.sources
        self.sources.add(source)
        if self._server is None or self._worker is None:
            assert self._task is not None
            self._task.cancel()
            return
        self._worker.stopping = True
        self._server.should_exit = True
        self._server.force_exit = self._server.force_exit or is_repeated


def configure_logs(settings: ServerSettings) -> None:
    """Log events to stderr, from the level in the settings on."""
    level = "debug" if settings.log_level == "trace" else settings.log_level
    logs.configure(level=logging.getLevelNamesMapping()[level.upper()])
