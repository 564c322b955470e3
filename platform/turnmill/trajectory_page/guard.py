"""What keeps other sites out of the page, and what trajectories say out of the browser's hands."""

import ipaddress
from collections.abc import Awaitable, Callable, Iterable

from fastapi import Request
from fastapi.responses import PlainTextResponse, Response

HEADERS = {
    # Trajectories hold what models said: nothing of it may run, load or send anything.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}

Next = Callable[[Request], Awaitable[Response]]


def guard(names: Iterable[str]) -> Callable[[Request, Next], Awaitable[Response]]:
    """A middleware that answers to addresses and to these names alone.

    A foreign site may have its own name lead to this machine, and the visitor's browser then reads the page for it;
    addresses in numbers cannot be made to lead elsewhere.
    """
    allowed = {"localhost", *(name.lower() for name in names)}

    async def middleware(request: Request, call_next: Next) -> Response:
        host = _name_in(request.headers.get("host", ""))
        if host not in allowed and not _is_address(host):
            response: Response = PlainTextResponse(
                f"{host[:100]!r} is no name of this page. Open it as http://127.0.0.1:PORT, "
                "or start it with --allow-host NAME.\n",
                status_code=421,
            )
        else:
            response = await call_next(request)
        response.headers.update(HEADERS)
        return response

    return middleware


def _name_in(host: str) -> str:
    """The host of a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".").lower()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
