"""HTTP connections of servers: their listeners, and limits for their age and for the time of a request."""

import asyncio
import contextlib
import importlib.util
import random
import resource
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.requests import Request
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from turnmill.core.errors import SettingsError

HEAD_SECONDS = 10.0
"""Time limit for a request's line and headers, from the connection or its first byte on."""

MAX_AGE_SECONDS = 30.0
"""Age from which on a connection is closed with its next answer.

A Service balances connections, not requests: without it, a replica that joins would get none of the clients' open ones.
"""

AGE_SPREAD = 0.3
"""Share of that age by which connections differ, so that clients do not open all of theirs at once."""

OPEN_FILES = 65_536
BACKLOG = 8192

KEEP_ALIVE_IDLE_SECONDS = 30
KEEP_ALIVE_PROBES = 3
UNACKNOWLEDGED_MILLISECONDS = 60_000
"""Time for which a client may leave sent data unacknowledged, or its window closed, before its connection is closed."""


class TimedHttpProtocol(HttpToolsProtocol):
    """Closes connections on which no request arrives in time, so that slow clients cannot pile up, and old ones."""

    _head_timer: asyncio.TimerHandle | None = None
    _old_at = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect the first request."""
        super().connection_made(transport)
        self._old_at = self.loop.time() + MAX_AGE_SECONDS * random.uniform(1 - AGE_SPREAD, 1)
        self._limit_head()

    def data_received(self, data: bytes) -> None:
        """Parse data; a request whose head is complete has time limits of its own, for its body and its calls."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_limit()
        else:
            self._limit_head()

    def on_headers_complete(self) -> None:
        """Begin with a request; if the connection is old, its response has the header `Connection: close`."""
        super().on_headers_complete()
        if self.cycle is not None and self.loop.time() >= self._old_at:
            self.cycle.keep_alive = False

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_limit()
        super().connection_lost(exc)

    def _limit_head(self) -> None:
        if self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _stop_limit(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


def close_half_open(listener: socket.socket) -> None:
    """Let the kernel close connections whose client has vanished; accepted sockets inherit the options."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": KEEP_ALIVE_IDLE_SECONDS,
        "TCP_KEEPINTVL": KEEP_ALIVE_IDLE_SECONDS // KEEP_ALIVE_PROBES,
        "TCP_KEEPCNT": KEEP_ALIVE_PROBES,
        "TCP_USER_TIMEOUT": UNACKNOWLEDGED_MILLISECONDS,
    }
    for name, value in options.items():
        if (option := getattr(socket, name, None)) is not None:  # macOS lacks some
            listener.setsockopt(socket.IPPROTO_TCP, option, value)


def raise_open_files_limit() -> None:
    """Allow more open files, up to the system's hard limit: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


def listen(host: str, port: int, flag: str = "--port") -> socket.socket:
    """Return a listening socket, from which all workers accept connections. Raises SettingsError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"{flag} {port} cannot be served on --host {host}: {error.strerror}. Choose another, or 0 for a free one."
        ) from error
    close_half_open(listener)
    listener.listen(BACKLOG)
    listener.set_inheritable(True)
    return listener


class UvicornServer(uvicorn.Server):
    """Server that leaves signals to its process, also during start and shutdown."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


async def answer_nobody(request: Request, error: Exception) -> Response:
    """Return what is not sent: the client has gone in the middle of its body, which is not worth a traceback."""
    return Response(status_code=499)


def event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes event loops of uvloop; None, for those of asyncio, where it is not installed."""
    if not importlib.util.find_spec("uvloop"):
        return None
    import uvloop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
