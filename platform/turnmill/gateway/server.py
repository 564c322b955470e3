"""The gateway's HTTP server, in an event loop that does other work, too."""

import asyncio
import socket

import uvicorn
from starlette.types import ASGIApp

from turnmill.core.http_connections import TimedHttpProtocol, UvicornServer, listen

KEEP_ALIVE_SECONDS = 75


MAX_CONNECTIONS = 128
"""Connections of one program at a time, if it is not trusted: each is a descriptor of this process."""


class LimitedHttpProtocol(TimedHttpProtocol):
    """Closes connections above a number of them."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, or close it."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()


class HttpServer:
    """Serves an application on a port of one address, until it is closed."""

    def __init__(
        self,
        app: ASGIApp,
        listener: socket.socket | None = None,
        *,
        drain_seconds: int | None = None,
        http: type[TimedHttpProtocol] = TimedHttpProtocol,
    ) -> None:
        """Take what to listen on; left out, a free port of this machine for its own processes.

        With `drain_seconds`, `close` waits so long for requests that are being answered.
        """
        self._socket = listener or listen("127.0.0.1", 0)
        config = uvicorn.Config(
            app,
            http=http,
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=drain_seconds,
        )
        self._server = UvicornServer(config)
        self._serving: asyncio.Task[None] | None = None
        address, number = self._socket.getsockname()[:2]
        self.url = f"http://[{address}]:{number}" if ":" in address else f"http://{address}:{number}"

    def start(self) -> None:
        """Begin to serve in the running event loop."""
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    async def close(self) -> None:
        """Stop serving."""
        self._server.should_exit = True
        self._server.force_exit = self._server.config.timeout_graceful_shutdown is None
        if self._serving is not None:
            await self._serving
        self._socket.close()
