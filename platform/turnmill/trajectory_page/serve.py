"""HTTP server of the page."""

import contextlib
import ipaddress
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from turnmill.core.errors import SettingsError
from turnmill.trajectory_page.app import create_app
from turnmill.trajectory_page.runs_app import create_runs_app
from turnmill.trajectory_page.source import open_source

# Of a host as browsers send it: names in other scripts in their form with `xn--`.
HOST_NAME = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*", re.IGNORECASE)


def serve(
    location: str,
    *,
    runs: bool = False,
    host: str,
    port: int,
    allowed_hosts: Iterable[str] = (),
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Show the run in a folder, the runs in a store, or with `runs` those in a folder; `on_ready` gets the URL.

    Raises SettingsError.
    """
    allowed = [host, *checked_host_names(allowed_hosts)]
    listener = _listen(host, port)
    try:
        app = _create_app(location, runs=runs, allowed_hosts=allowed)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=3))
        # uvicorn raises KeyboardInterrupt again after it has shut down.
        with contextlib.suppress(KeyboardInterrupt):
            on_ready(_url(host, listener.getsockname()[1]))
            server.run(sockets=[listener])
    finally:
        listener.close()


def checked_host_names(names: Iterable[str]) -> Iterator[str]:
    """Yield the names that `--allow-host` gives. Raises SettingsError for one that no browser sends as a host."""
    for name in names:
        if HOST_NAME.fullmatch(name) is None:
            raise SettingsError(
                f"--allow-host {name!r} is no host name, so it would never be accepted. Write the name alone, without "
                "scheme, port, path and wildcard, such as runs.example.com; addresses are accepted without this option."
            )
        yield name


def _create_app(location: str, *, runs: bool, allowed_hosts: Iterable[str]) -> FastAPI:
    if runs:
        return create_runs_app(Path(location), allowed_hosts=allowed_hosts)
    return create_app(open_source(location), allowed_hosts=allowed_hosts)


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
