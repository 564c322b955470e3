"""A small site on a loopback port, for tests of tools that read the web."""

from collections.abc import Callable, Mapping

from aiohttp import web

from support.loopback_site import LoopbackSite

Handler = Callable[[web.Request], web.StreamResponse]


class WebSite(LoopbackSite):
    """Serves pages by path, as HTML or by a function; `requests` records all requests."""

    def __init__(self, pages: Mapping[str, str | Handler]) -> None:
        super().__init__()
        self.pages = dict(pages)
        self.requests: list[tuple[str, str, str]] = []
        """Method, path with query, body."""

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, request.path_qs, await request.text()))
        await self.may_answer.wait()
        page = self.pages.get(request.path)
        if page is None:
            return web.Response(status=404, text="<title>Lost</title><p>Not here.</p>", content_type="text/html")
        if isinstance(page, str):
            return web.Response(text=page, content_type="text/html")
        return page(request)
