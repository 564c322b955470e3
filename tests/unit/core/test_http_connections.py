import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from turnmill.core import http_connections
from turnmill.core.http_connections import TimedHttpProtocol
from turnmill.tool_server.serve import listen

REQUEST = b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n"


class Site:
    """A server whose answers wait until `may_answer` is set."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.may_answer = asyncio.Event()
        self.num_waiting = 0
        self.writers: list[asyncio.StreamWriter] = []
        """Kept: a writer that is collected closes its connection."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await Request(scope, receive).body()
        self.num_waiting += 1
        await self.may_answer.wait()
        await PlainTextResponse("answered")(scope, receive, send)

    async def connect(self, sent: bytes) -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        writer.write(sent)
        return reader


@asynccontextmanager
async def serving() -> AsyncIterator[Site]:
    with listen("127.0.0.1", 0) as listener:
        site = Site(listener.getsockname()[1])
        config = uvicorn.Config(site, http=TimedHttpProtocol, ws="none", log_config=None, lifespan="off")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield site
        finally:
            site.may_answer.set()
            for writer in site.writers:
                writer.close()
            server.should_exit = True
            await serving


async def is_closed(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(20):
        try:
            return await reader.read() == b""
        except ConnectionError:
            return True


@pytest.mark.parametrize("sent", [b"", b"GET /slow HTTP/1.1\r\nHost"])
async def test_a_connection_without_a_whole_head_is_closed(monkeypatch: pytest.MonkeyPatch, sent: bytes):
    monkeypatch.setattr(http_connections, "HEAD_SECONDS", 0.05)
    async with serving() as site:
        assert await is_closed(await site.connect(sent))


async def test_a_second_request_without_a_whole_head_is_closed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_connections, "HEAD_SECONDS", 0.05)
    async with serving() as site:
        site.may_answer.set()
        reader = await site.connect(REQUEST)
        async with asyncio.timeout(20):
            await reader.readuntil(b"answered")
        site.writers[0].write(REQUEST[:10])

        assert await is_closed(reader)


async def test_a_request_whose_call_takes_long_is_answered(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_connections, "HEAD_SECONDS", 0.05)
    async with serving() as site:
        answered = await site.connect(REQUEST)
        # The limit of a connection that was opened later passes while the call runs.
        assert await is_closed(await site.connect(b""))
        site.may_answer.set()

        async with asyncio.timeout(20):
            assert (await answered.readuntil(b"answered")).startswith(b"HTTP/1.1 200")
    assert site.num_waiting == 1


async def test_accepted_connections_are_probed_for_vanished_clients():
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000


async def test_the_next_answer_on_an_old_connection_closes_it_and_tells_the_client(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_connections, "MAX_AGE_SECONDS", 1.0)
    async with serving() as site:
        site.may_answer.set()
        reader = await site.connect(REQUEST)
        young = await reader.readuntil(b"answered")
        clock = asyncio.get_running_loop().time
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: clock() + 1.0)
        site.writers[0].write(REQUEST)
        async with asyncio.timeout(20):
            old = await reader.read()

    assert b"connection: close" not in young
    assert b"connection: close" in old
    assert old.endswith(b"answered")


class Balancer:
    """A Service: each new connection goes to the next replica, and stays there."""

    def __init__(self, *replicas: Site) -> None:
        self.replicas = list(replicas)
        self._num_connections = 0
        self._copying: set[asyncio.Task[None]] = set()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        replica = self.replicas[self._num_connections % len(self.replicas)]
        self._num_connections += 1
        back, forth = await asyncio.open_connection("127.0.0.1", replica.port)
        copies = [asyncio.create_task(self._copy(reader, forth)), asyncio.create_task(self._copy(back, writer))]
        self._copying.update(copies)

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65_536):
                target.write(data)
                await target.drain()
        target.close()


async def test_a_replica_that_joins_takes_its_share_of_the_calls_of_clients_that_were_connected_before(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(http_connections, "MAX_AGE_SECONDS", 0.2)
    async with serving() as first, serving() as second, contextlib.AsyncExitStack() as stack:
        first.may_answer.set()
        second.may_answer.set()
        balancer = Balancer(first)
        service = await stack.enter_async_context(await asyncio.start_server(balancer, "127.0.0.1", 0))
        url = f"http://127.0.0.1:{service.sockets[0].getsockname()[1]}/slow"
        session = await stack.enter_async_context(aiohttp.ClientSession())

        async def call() -> None:
            async with session.get(url) as response:
                assert await response.text() == "answered"

        await asyncio.gather(*(call() for _ in range(8)))
        balancer.replicas.append(second)
        async with asyncio.timeout(20):
            while second.num_waiting < 100:
                await asyncio.gather(*(call() for _ in range(8)))
        before = first.num_waiting, second.num_waiting
        async with asyncio.timeout(20):
            while second.num_waiting < before[1] + 200:
                await asyncio.gather(*(call() for _ in range(8)))
        took = first.num_waiting - before[0], second.num_waiting - before[1]

    assert took[1] / sum(took) > 0.15
