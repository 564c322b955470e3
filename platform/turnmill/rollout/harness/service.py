"""An agent that is a service: it plays a trajectory for each request, and answers when it is done."""

import asyncio
import json
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from turnmill.core.errors import HarnessError, SettingsError
from turnmill.core.http_connections import listen
from turnmill.rollout.harness.program import MAX_OUTPUT_BYTES, Ended, wait_for_end

CONNECT_SECONDS, PAUSE_SECONDS = 30.0, 1.0
"""Time for which a service that does not listen is tried again, and time between two tries."""

PORTS = range(9700, 9764)
"""Ports of the gateways that services reach, one for each agent loop worker of a machine; the chart opens them."""


async def ask_service(
    url: str,
    body: Mapping[str, object],
    *,
    timeout_seconds: float,
    stop: asyncio.Event,
    socket_file: Path | None = None,
) -> Ended:
    """Return what a service answers to a request, or how it ended: its time is over, or `stop` is set.

    Then the connection is closed, by which the service knows that nobody waits for it. A status that is no success
    counts as an exit code. A request is sent once: a repeat could repeat effects. Raises HarnessError if the service
    cannot be reached, or breaks the connection. With `socket_file`, the service is on this machine, at that socket.
    """
    asking = asyncio.create_task(_ask(url, body, socket_file))
    how = await wait_for_end(asking, timeout_seconds, stop)
    return asking.result() if how == "exited" else Ended(0, how, "", "")


async def _ask(url: str, body: Mapping[str, object], socket_file: Path | None) -> Ended:
    no_limit = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
    # At a socket of this machine nobody is still starting.
    last_try = time.monotonic() + (CONNECT_SECONDS if socket_file is None else 0)
    connector = None if socket_file is None else aiohttp.UnixConnector(str(socket_file))
    async with aiohttp.ClientSession(timeout=no_limit, connector=connector) as session:
        while True:
            try:
                async with session.post(url, json=body) as response:
                    text = await _end_of(response)
                    return Ended(0, "exited", text, "") if response.ok else Ended(response.status, "exited", "", text)
            except (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError) as error:
                if time.monotonic() >= last_try:
                    raise HarnessError(
                        f"spec.agent.url: nothing listens at {url}: {error}. Start the service, or open the way to it."
                    ) from error
                await asyncio.sleep(PAUSE_SECONDS)
            except aiohttp.ClientError as error:
                raise HarnessError(f"spec.agent.url: {url} broke the connection: {error!r}.") from error


async def _end_of(response: aiohttp.ClientResponse) -> str:
    """Return the end of a body; JSON of several lines on one, as the last line is read."""
    kept = bytearray()
    async for piece in response.content.iter_any():
        kept += piece
        del kept[:-MAX_OUTPUT_BYTES]
    text = kept.decode(errors="replace")
    try:
        return json.dumps(json.loads(text))
    except ValueError:
        return text


def listen_towards(url: str) -> socket.socket:
    """Return a listening socket that a service can reach. Raises HarnessError without a way to it or a free port."""
    address = _address_towards(url)
    for port in PORTS:
        with suppress(SettingsError):
            return listen(address, port)
    raise HarnessError(f"spec.agent.url: the ports {PORTS[0]} to {PORTS[-1]} of {address} are all taken.")


def _address_towards(url: str) -> str:
    parts = urlsplit(url)
    try:
        ((family, kind, protocol, _, address), *_) = socket.getaddrinfo(
            parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM
        )
        with socket.socket(family, kind, protocol) as probe:
            # Of a datagram socket, this sends nothing.
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise HarnessError(f"spec.agent.url: there is no way from here to {parts.hostname}: {error}.") from error
