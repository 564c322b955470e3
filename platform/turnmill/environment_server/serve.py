"""Start and end of an environment server."""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from turnmill.core.errors import EnvironmentFailedError, SettingsError
from turnmill.core.http_access import read_token
from turnmill.core.http_connections import (
    BACKLOG,
    TimedHttpProtocol,
    UvicornServer,
    event_loop_factory,
    listen,
    raise_open_files_limit,
)
from turnmill.environment_server.app import Description, create_app
from turnmill.environment_server.session import Sessions
from turnmill.environments import registry
from turnmill.environments.runtime.fork_server import ForkServer
from turnmill.environments.runtime.process import EnvironmentProcess
from turnmill.environments.runtime.worker import WorkerSettings

CLOSE_SECONDS = 2
"""Time for actions in progress to be given up at the end."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What a server serves, and its limits."""

    environment: WorkerSettings
    step_timeout_seconds: float
    reset_timeout_seconds: float
    host: str
    port: int
    allowed_hosts: tuple[str, ...]
    token_file: Path | None
    max_sessions: int
    idle_seconds: float
    drain_seconds: float
    max_message_bytes: int


class UpgradingHttpProtocol(TimedHttpProtocol):
    """Has no time limit for a further request once a connection has become a WebSocket."""

    def data_received(self, data: bytes) -> None:
        """Parse data, and stop the timer after an upgrade."""
        super().data_received(data)
        if self.transport.get_protocol() is not self:
            self._stop_limit()


def run_server(settings: ServerSettings) -> None:
    """Serve until a signal. Raises SettingsError if the environment cannot be created, or the port not be served."""
    raise_open_files_limit()
    token = None if settings.token_file is None else read_token(settings.token_file)
    description, actions = describe(settings.environment)
    with (
        listen(settings.host, settings.port) as listener,
        contextlib.closing(ForkServer(settings.environment.python)) as fork_server,
        asyncio.Runner(loop_factory=event_loop_factory()) as runner,
    ):
        new_process = partial(
            EnvironmentProcess,
            settings.environment,
            step_timeout_seconds=settings.step_timeout_seconds,
            reset_timeout_seconds=settings.reset_timeout_seconds,
            fork_server=fork_server,
        )
        runner.run(_check(new_process))
        sessions = Sessions(new_process, actions, max_sessions=settings.max_sessions)
        app = create_app(
            sessions,
            description,
            allowed_hosts=(settings.host, socket.getfqdn(), *settings.allowed_hosts),
            token=token,
            idle_seconds=settings.idle_seconds,
            max_message_bytes=settings.max_message_bytes,
        )
        runner.run(_serve(settings, app, sessions, listener))


def describe(environment: WorkerSettings) -> tuple[Description, tuple[str, ...]]:
    """Return the description of an environment and its actions; of one with an interpreter of its own, none.

    Raises SettingsError if there is no such environment, or it cannot be created with its task and options.
    """
    name = f"{environment.name} {environment.task or ''}".strip()
    if environment.python is not None:
        return Description(name, f"The environment {name} of turnmill."), ()
    try:
        made = registry.create(environment.name, environment.task, environment.max_turns, environment.options)
    except SettingsError:
        raise
    except Exception as error:
        # A class of the user's own may raise anything.
        raise SettingsError(f"environment.name: {name} cannot be created: {type(error).__name__}: {error}.") from error
    return Description(name, (type(made).__doc__ or name).partition("\n")[0]), tuple(made.actions)


async def _check(new_process: Callable[[], EnvironmentProcess]) -> None:
    """Raise SettingsError if the environment cannot be created in a process of its own."""
    try:
        await new_process().check()
    except EnvironmentFailedError as error:
        raise SettingsError(str(error)) from error


async def _serve(settings: ServerSettings, app: Starlette, sessions: Sessions, listener: socket.socket) -> None:
    config = uvicorn.Config(
        app,
        http=UpgradingHttpProtocol,
        ws="websockets-sansio",
        ws_max_size=settings.max_message_bytes,
        ws_per_message_deflate=False,
        # A client may be busy with an update of its policy for minutes; the kernel finds those that have vanished.
        ws_ping_timeout=None,
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        lifespan="off",
        backlog=BACKLOG,
        timeout_graceful_shutdown=CLOSE_SECONDS,
    )
    server = UvicornServer(config)
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            sessions.ended.set()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.serve(sockets=[listener]))
        host, port = listener.getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        log.info(
            "Environment server ready",
            extra={
                "url": f"http://{address}",
                "environment": settings.environment.name,
                **({"task": settings.environment.task} if settings.environment.task else {}),
                "max_sessions": settings.max_sessions,
            },
        )
        await stop.wait()
        log.info("Environment server stops", extra={"sessions": sessions.num_sessions})
        await sessions.drain(settings.drain_seconds)
        server.should_exit = True
