"""Fetches pages over HTTP."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from http.cookiejar import CookieJar
from typing import TYPE_CHECKING

from turnmill.core.errors import ToolFailedError
from turnmill.sandboxes.base import MIB
from turnmill.tools import settings
from turnmill.tools.browser.content import BoundedDecoder, UnreadableContentError

if TYPE_CHECKING:
    from turnmill.tools.browser.transport import GuardedTransport

Cookie = tuple[str, str, str, str]

_SERVER_ERROR = 500
_TEMPORARY_ERRORS = (408, 425, 429)
_MAX_COOKIES = 100
_MAX_COOKIE_CHARACTERS = 4096


class PageUnavailableError(Exception):
    """The address has no page that can be shown; the message is for the agent."""


@dataclass(frozen=True, slots=True)
class FetchedPage:
    """A response, truncated to the maximum size."""

    url: str
    status: int
    content_type: str
    content: bytes
    cookies: tuple[Cookie, ...]
    is_cut: bool = False


class Fetcher:
    """Fetches pages within the browser's limits."""

    def __init__(self, values: settings.Values) -> None:
        self._seconds = settings.number(values, "BROWSER_TIMEOUT_SECONDS", 30, least=0.1)
        self._max_bytes = settings.count(values, "BROWSER_MAX_PAGE_BYTES", 4 * MIB, least=1024)
        self._private = settings.choice(values, "BROWSER_PRIVATE_ADDRESSES", "refuse", ("refuse", "allow")) == "allow"
        hosts = settings.text(values, "BROWSER_HOSTS", "")
        self._hosts = tuple(host.strip().lower() for host in hosts.split(",") if host.strip())
        self._fails = settings.choice(values, "BROWSER_ON_FAILURE", "fail", ("fail", "text")) == "fail"
        self._transport: GuardedTransport | None = None

    async def start(self) -> None:
        """Open the connections."""
        import httpx

        from turnmill.tools.browser.transport import GuardedTransport

        # Connections are kept by address, and one address serves many hosts, each with a certificate of its own.
        inner = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=None, max_keepalive_connections=0))
        self._transport = GuardedTransport(inner, allows_host=self._allows, private=self._private)

    async def close(self) -> None:
        """Close the connections."""
        if self._transport is not None:
            await self._transport.aclose()

    async def fetch(self, url: str, body: str | None, cookies: Sequence[Cookie]) -> FetchedPage:
        """Fetch a page, by POST if there is a body.

        Raises PageUnavailableError if the address is wrong, ToolFailedError if the site fails.
        """
        import httpx

        from turnmill.tools.browser.transport import RefusedAddressError, UnknownHostError

        try:
            async with asyncio.timeout(self._seconds):
                return await self._fetch(url, body, cookies)
        except (RefusedAddressError, UnknownHostError, UnreadableContentError) as error:
            raise PageUnavailableError(str(error)) from error
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise PageUnavailableError(f"{url[:200]!r} is no address that can be visited.") from error
        except httpx.TooManyRedirects as error:
            raise PageUnavailableError("The page redirects in a circle.") from error
        except (httpx.TransportError, httpx.DecodingError, OSError, TimeoutError) as error:
            return self._fail(url, str(error) or type(error).__name__, error)

    async def _fetch(self, url: str, body: str | None, cookies: Sequence[Cookie]) -> FetchedPage:
        import httpx

        jar = httpx.Cookies()
        for name, value, domain, path in cookies:
            jar.set(name, value, domain, path)
        # A client of its own for the trajectory's cookies; the connections are shared, so it is not closed.
        client = httpx.AsyncClient(
            transport=self._transport, cookies=jar, timeout=self._seconds, follow_redirects=True, max_redirects=10
        )
        headers = {
            "accept": "text/html,text/plain;q=0.9,*/*;q=0.1",
            "accept-encoding": "identity",
            "user-agent": "turnmill-text-browser",
        }
        method = "GET"
        if body is not None:
            method, headers["content-type"] = "POST", "application/x-www-form-urlencoded"
        async with client.stream(method, url, headers=headers, content=body) as response:
            if response.status_code >= _SERVER_ERROR or response.status_code in _TEMPORARY_ERRORS:
                raise OSError(f"it answered {response.status_code}")
            # httpx undoes every layer of an encoding before it hands out a byte: the body is read as it was sent.
            body_decoder = BoundedDecoder(response.headers.get("content-encoding", ""), max_bytes=self._max_bytes)
            async for piece in response.aiter_raw():
                body_decoder.feed(piece)
                if body_decoder.is_cut:
                    break
        return FetchedPage(
            str(response.url),
            response.status_code,
            response.headers.get("content-type", "text/html"),
            body_decoder.content,
            _kept(client.cookies.jar),
            is_cut=body_decoder.is_cut,
        )

    def _allows(self, host: str) -> bool:
        return not self._hosts or any(host == known or host.endswith(f".{known}") for known in self._hosts)

    def _fail(self, url: str, reason: str, error: Exception) -> FetchedPage:
        if self._fails:
            raise ToolFailedError(f"text_browser: {url[:200]} failed: {reason}.") from error
        raise PageUnavailableError(f"The page cannot be reached: {reason}.") from error


def _kept(jar: CookieJar) -> tuple[Cookie, ...]:
    cookies = [(cookie.name, cookie.value or "", cookie.domain, cookie.path) for cookie in jar]
    return tuple(cookie for cookie in cookies if len("".join(cookie)) <= _MAX_COOKIE_CHARACTERS)[-_MAX_COOKIES:]
