"""A server on a loopback port, for the duration of a `with` block."""

import asyncio
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from aiohttp import web


class LoopbackSite(ABC):
    """Passes every request to `_handle`, which waits for `may_answer` before it answers."""

    def __init__(self) -> None:
        self.url = ""
        self.may_answer = asyncio.Event()
        """While it is cleared, the server accepts requests and does not answer."""

        self.may_answer.set()
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

    @abstractmethod
    async def _handle(self, request: web.Request) -> web.StreamResponse: ...
