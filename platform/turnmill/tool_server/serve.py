"""Start of a tool server: socket, store if none is configured, and one worker or a supervisor of several."""

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from turnmill.core.errors import SettingsError, ToolUnavailableError
from turnmill.core.http_access import read_token
from turnmill.core.http_connections import close_half_open, listen
from turnmill.core.supervisor import OnReady, Supervisor
from turnmill.observability.worker_metrics import metrics_of_workers
from turnmill.tool_server.settings import ServerSettings
from turnmill.tool_server.threads import exit_despite_threads
from turnmill.tool_server.tool_set import FINISH
from turnmill.tool_server.worker_process import configure_logs, run_worker
from turnmill.tools import registry
from turnmill.tools.settings import with_environment
from turnmill.trajectories.address import with_password
from turnmill.trajectories.embedded import EmbeddedStore

log = logging.getLogger(__name__)


def run_server(settings: ServerSettings) -> None:
    """Serve until a signal; return after all processes of the server have ended.

    Raises SettingsError if it cannot listen, and the errors of tools and sandbox that cannot start.
    """
    configure_logs(settings)
    if settings.token_file is not None:
        read_token(settings.token_file)
    if check_tools(settings):
        settings = settings.keeping_objects()
        if settings.num_workers > 1:
            log.warning(
                "A tool keeps objects of trajectories in its process, which other workers lack: use one worker",
                extra={"workers": settings.num_workers},
            )
    with ExitStack() as stack:
        listeners = [stack.enter_context(_listener(settings))]
        if settings.metrics_port is not None:
            listeners.append(stack.enter_context(listen(settings.host, settings.metrics_port, "--metrics-port")))
        settings = stack.enter_context(_with_store(settings))
        if settings.num_workers == 1:
            run_worker(settings, listeners, on_ready=partial(_log_ready, settings, listeners))
        else:
            stack.enter_context(metrics_of_workers())
            Supervisor(
                partial(_work, settings),
                listeners,
                num_workers=settings.num_workers,
                grace_seconds=settings.grace_seconds,
                on_ready=partial(_log_ready, settings, listeners),
                name="tool-server-worker",
            ).run()
    exit_despite_threads()


def check_tools(settings: ServerSettings) -> bool:
    """Return whether a tool keeps objects of trajectories in its process.

    Raises ToolUnavailableError for the tools that cannot work here, before anything is started.
    """
    values = with_environment(settings.tool_settings)
    classes, errors = [], []
    for name in settings.tool_type:
        try:
            classes.append(registry.check(name, values))
        except SettingsError as error:
            errors.append(error)
    if errors and not settings.allow_missing_tools:
        raise ToolUnavailableError("\n".join(map(str, errors)))
    return any(tool_class.keeps_objects for tool_class in classes)


def _work(
    settings: ServerSettings,
    listeners: Sequence[socket.socket],
    *,
    on_ready: OnReady,
    stop_when_readable: int | None = None,
) -> None:
    """Serve in a worker process."""
    configure_logs(settings)
    run_worker(settings, listeners, on_ready=on_ready, stop_when_readable=stop_when_readable)
    exit_despite_threads()


def _listener(settings: ServerSettings) -> socket.socket:
    """Return the socket for calls."""
    if settings.listener is None:
        return listen(settings.host, settings.port)
    try:
        listener = socket.socket(fileno=settings.listener)
    except OSError as error:
        raise SettingsError(f"--listener {settings.listener} is no socket: {error.strerror}.") from error
    close_half_open(listener)
    listener.set_inheritable(True)
    return listener


@contextmanager
def _with_store(settings: ServerSettings) -> Iterator[ServerSettings]:
    """Yield the settings with the URL of a store, which is started here if none is configured."""
    if settings.redis is not None:
        yield settings.model_copy(update={"redis": with_password(settings.redis)})
        return
    with EmbeddedStore(max_bytes=settings.store_bytes) as store:
        yield settings.model_copy(update={"redis": store.url})


def _log_ready(settings: ServerSettings, listeners: Sequence[socket.socket], left_out: object) -> None:
    assert isinstance(left_out, tuple)
    scheme = "http" if settings.tls_cert_file is None else "https"
    addresses = ["{}:{}".format(*listener.getsockname()[:2]) for listener in listeners]
    log.info(
        "Tool server ready",
        extra={
            "url": f"{scheme}://{addresses[0]}/get_observation",
            "metrics": f"http://{addresses[-1]}/metrics",
            "tools": ",".join(dict.fromkeys([*(name for name in settings.tool_type if name not in left_out), FINISH])),
            **({"left_out": ",".join(left_out)} if left_out else {}),
            "workers": settings.num_workers,
            "process_id": os.getpid(),
        },
    )
