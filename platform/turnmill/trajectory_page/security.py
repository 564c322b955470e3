"""Security middleware: checks the Host header, and keeps browsers from running what trajectories contain."""

from collections.abc import Awaitable, Callable, Iterable

from fastapi import Request
from fastapi.responses import PlainTextResponse, Response

from turnmill.core.hosts import host_name, is_allowed_host

HEADERS = {
    # Trajectories contain text of models, which must not run, load or send anything.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}

CallNext = Callable[[Request], Awaitable[Response]]


def security_middleware(allowed_hosts: Iterable[str]) -> Callable[[Request, CallNext], Awaitable[Response]]:
    """Create a middleware that answers only to IP addresses, to localhost and to the allowed hosts.

    This prevents DNS rebinding: a foreign site can point its own name at this machine, but not an IP address.
    """
    allowed = {name.lower() for name in allowed_hosts}

    async def middleware(request: Request, call_next: CallNext) -> Response:
        host = host_name(request.headers.get("host", ""))
        if not is_allowed_host(host, allowed):
            response: Response = PlainTextResponse(
                f"{host[:100]!r} is not an allowed host. Open the page as http://127.0.0.1:PORT, "
                "or start it with --allow-host NAME.\n",
                status_code=421,
            )
        else:
            response = await call_next(request)
        response.headers.update(HEADERS)
        return response

    return middleware
