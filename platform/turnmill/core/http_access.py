"""Who may call a server: hosts, origins and the bearer token."""

import secrets
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from turnmill.core.errors import SettingsError
from turnmill.core.hosts import host_name, is_allowed_host

MIN_TOKEN_CHARACTERS = 16

PATHS_WITHOUT_TOKEN = frozenset({"/health", "/readyz"})
"""Paths for probes, which say nothing of trajectories."""


LOCAL_SUFFIXES = (".svc", ".svc.cluster.local")
"""Ends of the names of Services in a Kubernetes cluster, which no site outside it can have."""


class AccessMiddleware:
    """Refuses requests under a foreign name (421), from foreign sites (403) and without the token, if one is set (401).

    Names without a dot, and those of Services, are accepted: they are local, and no site can have one.
    """

    def __init__(self, app: ASGIApp, *, allowed_hosts: Iterable[str] = (), token: str | None = None) -> None:
        self._app = app
        self._allowed_hosts = frozenset(name.lower().rstrip(".") for name in allowed_hosts)
        self._credentials = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an allowed request on; also one for a WebSocket."""
        refusal = self._refusal(scope) if scope["type"] in ("http", "websocket") else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        name = host_name(host)
        is_local = "." not in name or name.endswith(LOCAL_SUFFIXES)
        if not is_local and not is_allowed_host(name, self._allowed_hosts):
            return _refuse(421, f"{name[:100]!r} is not an allowed host: start the server with --allow-host NAME.")
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return _refuse(403, f"Requests of the site {origin[:100]!r} are refused.")
        if self._credentials is None or scope["path"] in PATHS_WITHOUT_TOKEN:
            return None
        given = headers.get("authorization", "").encode("latin-1")
        if secrets.compare_digest(given, self._credentials):
            return None
        problem = _refuse(401, "The token is missing or wrong: send the header `Authorization: Bearer TOKEN`.")
        problem.headers["WWW-Authenticate"] = "Bearer"
        return problem


def read_token(path: Path) -> str:
    """Return the token in a file; surrounding whitespace is ignored. Raises SettingsError."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as error:
        raise SettingsError(f"--token-file {path} cannot be read: {error}. Name a file with the token.") from error
    if len(token) < MIN_TOKEN_CHARACTERS or not token.isprintable() or " " in token:
        raise SettingsError(
            f"--token-file {path} has a token of {len(token)} characters: it must be one word of at least "
            f"{MIN_TOKEN_CHARACTERS}, such as the output of `openssl rand -hex 32`."
        )
    return token


def _refuse(status: int, detail: str) -> JSONResponse:
    return JSONResponse({"detail": detail}, status_code=status)
