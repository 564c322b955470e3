"""Requests of JSON over HTTP, with the standard library alone."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

CONNECT_SECONDS, PAUSE_SECONDS = 30.0, 0.5
"""Time for which a server that does not listen is tried again, and time between two tries."""

FAILED = (OSError, HTTPException)
"""What a request raises."""

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Reply:
    """A server's answer to a request."""

    status: int
    text: str
    cookies: tuple[str, ...] = ()
    """The headers `Set-Cookie`."""

    def json_object(self) -> Json:
        """Return the body. Raises ValueError if it is no JSON object."""
        value = json.loads(self.text)
        if not isinstance(value, dict):
            raise ValueError(f"it is a {type(value).__name__}")
        return value


def post(url: str, body: object, headers: Mapping[str, str], *, timeout_seconds: float | None = None) -> Reply:
    """Return the answer to one request, which is sent once. Raises OSError or HTTPException."""
    parts = urlsplit(url)
    data = json.dumps(body).encode()
    connection = _connection(url, timeout_seconds)
    try:
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", path, data, {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        text = response.read().decode(errors="replace")
        return Reply(response.status, text, tuple(response.msg.get_all("Set-Cookie", ())))
    finally:
        connection.close()


def _connection(url: str, timeout_seconds: float | None) -> HTTPConnection:
    """Return an open connection; nothing has been sent yet, so a server that starts is waited for."""
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    last_try = time.monotonic() + min(CONNECT_SECONDS, timeout_seconds or CONNECT_SECONDS)
    while True:
        connection = kind(parts.hostname or "", parts.port, timeout=timeout_seconds)
        try:
            connection.connect()
            return connection
        except OSError:
            connection.close()
            if time.monotonic() >= last_try:
                raise
            time.sleep(PAUSE_SECONDS)
