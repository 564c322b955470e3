"""Starting a tool server, stopping it, and what lives in between."""

import asyncio
import importlib.util
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI

from turnmill.core.errors import SettingsError
from turnmill.observability import logs
from turnmill.tool_server.app import Worker
from turnmill.tool_server.factory import open_worker
from turnmill.tool_server.settings import ServerSettings
from turnmill.tool_server.supervisor import Supervisor
from turnmill.trajectories.embedded import EmbeddedStore

log = logging.getLogger(__name__)

BACKLOG = 8192
KEEP_ALIVE_SECONDS = 30
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_server(settings: ServerSettings) -> None:
    """Serve until a signal says stop; nothing of the server is left then."""
    configure_logs(settings)
    listener = listen(settings.host, settings.port)
    with listener, _with_store(settings) as settings:
        if settings.num_workers == 1:
            run_worker(settings, listener, on_ready=lambda: _tell(settings, listener))
        else:
            Supervisor(settings, listener, run_worker, on_ready=lambda: _tell(settings, listener)).run()


def run_worker(
    settings: ServerSettings,
    listener: socket.socket,
    *,
    on_ready: Callable[[], None],
    stop_when_readable: int | None = None,
) -> None:
    """Serve in this process; `stop_when_readable` is a descriptor that says stop as a signal does."""
    loop_factory: Any = None
    if importlib.util.find_spec("uvloop"):
        import uvloop

        loop_factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_serve(settings, listener, on_ready, stop_when_readable))


async def _serve(
    settings: ServerSettings, listener: socket.socket, on_ready: Callable[[], None], stop_when_readable: int | None
) -> None:
    stop = Stop()
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop, number)
    if stop_when_readable is not None:
        loop.add_reader(stop_when_readable, _stop_once, stop, stop_when_readable)
    try:
        async with open_worker(settings) as (worker, app):
            await _serve_http(worker, app, listener, stop, on_ready)
    except asyncio.CancelledError:
        if not stop.told:
            raise
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


def _stop_once(stop: "Stop", descriptor: int) -> None:
    asyncio.get_running_loop().remove_reader(descriptor)
    stop(descriptor)


async def _serve_http(
    worker: Worker, app: FastAPI, listener: socket.socket, stop: "Stop", on_ready: Callable[[], None]
) -> None:
    server = _HttpServer(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            # uvicorn hands it to asyncio, which takes fractions.
            timeout_graceful_shutdown=worker.settings.grace_seconds,  # type: ignore[arg-type]
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stop.tells(worker, server)
    reporting = asyncio.create_task(worker.report_regularly())
    try:
        while not (server.started or serving.done()):  # noqa: ASYNC110 (uvicorn tells nobody)
            await asyncio.sleep(0.005)
        if server.started:
            on_ready()
        await serving
        # uvicorn has cancelled what took longer than the grace; claims are still being given back.
        await worker.drain()
    finally:
        reporting.cancel()


class _HttpServer(uvicorn.Server):
    """Leaves the signals alone: they are ours from before it starts until after it ends."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Stop:
    """What a signal does: give up the start, or end in order; the same one again ends at once.

    Ctrl-C reaches workers from the terminal and from their parent, which must not count as twice.
    """

    def __init__(self) -> None:
        self.told: set[int] = set()
        self._task = asyncio.current_task()
        self._server: uvicorn.Server | None = None
        self._worker: Worker | None = None

    def tells(self, worker: Worker, server: uvicorn.Server) -> None:
        """From here on there is something to end in order."""
        self._worker, self._server = worker, server

    def __call__(self, source: int) -> None:
        again = source in self.told
        self.told.add(source)
        if self._server is None or self._worker is None:
            assert self._task is not None
            self._task.cancel()
            return
        self._worker.stopping = True
        self._server.should_exit = True
        self._server.force_exit = self._server.force_exit or again


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there; every worker takes connections from it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"--port {port} cannot be served on --host {host}: {error.strerror}. Take another one, or 0 for a free one."
        ) from error
    listener.listen(BACKLOG)
    listener.set_inheritable(True)
    return listener


def configure_logs(settings: ServerSettings) -> None:
    """Send events to stderr from the level on that was asked for."""
    level = "debug" if settings.log_level == "trace" else settings.log_level
    logs.configure(level=logging.getLevelNamesMapping()[level.upper()])


@contextmanager
def _with_store(settings: ServerSettings) -> Iterator[ServerSettings]:
    """The settings with a store in them, started here if none was named."""
    if settings.redis is not None:
        yield settings
        return
    with EmbeddedStore(max_bytes=settings.store_bytes) as store:
        yield settings.model_copy(update={"redis": store.url})


def _tell(settings: ServerSettings, listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    log.info(
        "Tool server ready",
        extra={
            "url": f"http://{host}:{port}/get_observation",
            "tools": ",".join(settings.tool_type),
            "workers": settings.num_workers,
            "process_id": os.getpid(),
        },
    )
