"""HTTP server of the page."""

import contextlib
import ipaddress
import socket
from collections.abc import Callable, Iterable

import uvicorn

from turnmill.core.errors import SettingsError
from turnmill.trajectory_page.app import create_app
from turnmill.trajectory_page.source import open_source


def serve(
    location: str,
    *,
    host: str,
    port: int,
    allowed_hosts: Iterable[str] = (),
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Show the run in a folder, or the runs in a store; `on_ready` gets the URL. Raises SettingsError."""
    listener = _listen(host, port)
    try:
        source = open_source(location)
        app = create_app(source, allowed_hosts=[host, *allowed_hosts])
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=3))
        # uvicorn raises KeyboardInterrupt again after it has shut down.
        with contextlib.suppress(KeyboardInterrupt):
            on_ready(_url(host, listener.getsockname()[1]))
            server.run(sockets=[listener])
    finally:
        listener.close()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        # A client may connect as soon as it knows the URL.
        listener.listen()
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"--port {port}: the port cannot be opened on {host} ({error.strerror or error}). "
            "Another `turnmill view` may use it: choose another port, or 0 for a free one."
        ) from error
    return listener


def _url(host: str, port: int) -> str:
    shown = "127.0.0.1" if _is_any(host) else f"[{host}]" if ":" in host else host
    return f"http://{shown}:{port}"


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Return whether a host can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
