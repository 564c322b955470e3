"""HTTP transport that connects only to public addresses: a name is resolved once, and the result is used."""

import asyncio
import ipaddress
import socket
from collections.abc import Callable

import httpx

_BODY_HEADERS = (b"content-encoding", b"content-length", b"transfer-encoding")


class RefusedAddressError(Exception):
    """Visiting the address is not allowed; the message is for the agent."""


class UnknownHostError(Exception):
    """The host name does not exist; the message is for the agent."""


class GuardedTransport(httpx.AsyncBaseTransport):
    """Checks the address of every request, redirects included."""

    def __init__(self, inner: httpx.AsyncBaseTransport, *, allows_host: Callable[[str], bool], private: bool) -> None:
        self._inner = inner
        self._allows_host = allows_host
        self._private = private

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Connect to the checked address, with the host name of the request."""
        host = request.url.host
        if not self._allows_host(host):
            raise RefusedAddressError(f"{host} may not be visited here.")
        address = await self._lookup(host, request.url.port or 443)
        guarded = httpx.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=request.headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": host},
        )
        response = await self._inner.handle_async_request(guarded)
        if not response.has_redirect_location:
            return response
        # httpx would read and decode the whole body of a redirection, which nobody sees.
        await response.aclose()
        headers = [(name, value) for name, value in response.headers.raw if name.lower() not in _BODY_HEADERS]
        return httpx.Response(response.status_code, headers=headers)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()

    async def _lookup(self, host: str, port: int) -> str:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if error.errno == socket.EAI_NONAME:
                raise UnknownHostError(f"There is no host {host}.") from error
            raise
        except UnicodeError as error:
            raise UnknownHostError(f"There is no host {host}.") from error
        addresses = [str(entry[4][0]) for entry in found]
        allowed = [address for address in addresses if self._private or is_public(address)]
        if not allowed:
            raise RefusedAddressError(f"{host} is no public address.")
        return allowed[0]


def is_public(address: str) -> bool:
    """Return whether an address is public: not private, local or reserved, nor an IPv6 form of such an address."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address):
        inner = parsed.ipv4_mapped or parsed.sixtofour or (parsed.teredo or (None, None))[1] or _behind_nat64(parsed)
        parsed = inner or parsed
    return parsed.is_global and not parsed.is_multicast


def _behind_nat64(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    network = ipaddress.ip_network("64:ff9b::/96")
    return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in network else None
