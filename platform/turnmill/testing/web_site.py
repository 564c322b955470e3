"""A small site on loopback, for tests of those who read the web."""

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from aiohttp import web

Handler = Callable[[web.Request], web.StreamResponse]


class WebSite:
    """Serves pages by path: HTML as text, or whatever a function answers; `requests` has what was asked for."""

    def __init__(self, pages: Mapping[str, str | Handler]) -> None:
        self.pages = dict(pages)
        self.requests: list[tuple[str, str, str]] = []
        """Method, path with query, body."""

        self.may_answer = asyncio.Event()
        """Cleared, the site hangs."""

        self.may_answer.set()
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        (address,) = self._runner.addresses
        self.url = f"http://127.0.0.1:{address[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        self.may_answer.set()
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path_qs, await request.text()))
        await self.may_answer.wait()
        page = self.pages.get(request.path)
        if page is None:
            return web.Response(status=404, text="<title>Lost</title><p>Not here.</p>", content_type="text/html")
        if isinstance(page, str):
            return web.Response(text=page, content_type="text/html")
        return page(request)
