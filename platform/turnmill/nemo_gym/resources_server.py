"""A resources server of NeMo Gym, as one trajectory sees it."""

from http.cookies import CookieError, SimpleCookie
from urllib.parse import quote

from turnmill.core.errors import EnvironmentFailedError
from turnmill.nemo_gym.http import FAILED, Json, Reply, post

AWAY = (502, 503, 504)
"""Statuses of a proxy whose server is away, and of a server that is overloaded."""

MAX_SHOWN = 300
"""Characters of a body in a message."""


class ResourcesServer:
    """The session of one trajectory on a resources server."""

    def __init__(self, url: str, *, timeout_seconds: float) -> None:
        self._url = url.rstrip("/")
        self._timeout_seconds = timeout_seconds
        self._cookies: dict[str, str] = {}

    def ask(self, path: str, body: object) -> Json:
        """Return the object that one of the server's own routes answers with.

        Raises EnvironmentFailedError if it answers anything else, or with a status of 400 or more.
        """
        reply = self._post(path, body)
        if reply.status >= 400:
            raise self._failed(path, f"answered {reply.status}: {reply.text[:MAX_SHOWN]}")
        try:
            return reply.json_object()
        except ValueError as error:
            raise self._failed(path, f"answered no JSON object: {error}") from error

    def call(self, tool: str, arguments: object) -> str:
        """Return what the route of a tool answers: also an error, which the policy reads as NeMo Gym's agents have it.

        Raises EnvironmentFailedError if the server is away or takes too long.
        """
        # A policy may write half of a surrogate pair.
        path = f"/{quote(tool, errors='replace')}"
        reply = self._post(path, arguments)
        if reply.status in AWAY:
            raise self._failed(path, f"answered {reply.status}: {reply.text[:MAX_SHOWN]}")
        return reply.text

    def _post(self, path: str, body: object) -> Reply:
        cookies = {"Cookie": "; ".join(f"{name}={value}" for name, value in self._cookies.items())}
        try:
            reply = post(
                self._url + path, body, cookies if self._cookies else {}, timeout_seconds=self._timeout_seconds
            )
        except FAILED as error:
            raise self._failed(path, f"did not answer: {error!r}") from error
        # Those of the last answer alone, as NeMo Gym's agents keep them: an answer without a cookie ends the session.
        self._cookies = _values(reply.cookies)
        return reply

    def _failed(self, path: str, what: str) -> EnvironmentFailedError:
        return EnvironmentFailedError(
            f"environment.options.url: {self._url}{path} {what}. See the log of the resources server."
        )


def _values(headers: tuple[str, ...]) -> dict[str, str]:
    """Return cookies by name."""
    cookies: dict[str, str] = {}
    for header in headers:
        try:
            found = SimpleCookie(header)
        except CookieError:
            continue
        cookies |= {name: morsel.coded_value for name, morsel in found.items()}
    return cookies
