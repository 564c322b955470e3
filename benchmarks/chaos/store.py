"""A trajectory store whose answers, connections and log are in the benchmark's hands."""

import asyncio
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from support.faulty_store import SAMPLE_SECONDS, Server, Wire
from turnmill.trajectories.embedded import EmbeddedStore

CALL_SECONDS = 120.0


class SlowWire(Wire):
    """A port in front of a server, whose answers can take longer."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        if not answers:
            return await super()._forward(reader, writer, answers=False)
        try:
            while data := await reader.read(65536):
                await asyncio.sleep(self.seconds)
                writer.write(data)
                await writer.drain()
        except OSError:
            pass


class WiredStore(ABC):
    """A store behind a wire, which runs in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._wire = SlowWire()

    def start(self) -> str:
        """Start the server, and return the URL for clients."""
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._call(self._start())
        return self._wire.url

    def delay(self, seconds: float) -> None:
        """Delay each answer; 0 ends it."""
        self._wire.seconds = seconds

    def cut(self) -> None:
        """Close all connections and refuse further ones."""
        self._wire.target = None
        self._loop.call_soon_threadsafe(self._wire.cut)

    def connect(self) -> None:
        """Accept connections again."""
        self._wire.target = self._socket

    @property
    @abstractmethod
    def _socket(self) -> Path:
        """The socket on which the server listens."""

    @abstractmethod
    async def _start_server(self) -> None:
        """Start the server."""

    async def _start(self) -> None:
        await self._start_server()
        self.connect()
        await self._wire.start()

    def _call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(CALL_SECONDS)


class WatchedStore(WiredStore):
    """The store that turnmill starts for a run, with its watch."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._store = EmbeddedStore(keep_in=folder)

    @property
    def _socket(self) -> Path:
        return Path(urlsplit(self._store.url).path)

    async def _start_server(self) -> None:
        await asyncio.to_thread(self._store.start)


class FaultyStore(WiredStore):
    """A server with an append-only file, whose end can be lost."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._server = Server(folder)

    def lose_tail(self, chance: random.Random) -> None:
        """Kill the server, undo a part of its last second, and start it again."""
        self._call(self._lose_tail(chance))

    @property
    def _socket(self) -> Path:
        return self._server.socket

    async def _start_server(self) -> None:
        await self._server.start()
        self._sampling = asyncio.create_task(self._sample())

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            self._server.sample()

    async def _lose_tail(self, chance: random.Random) -> None:
        self._sampling.cancel()
        self._server.kill()
        self._wire.cut()
        self._server.lose_tail(chance)
        await self._server.start()
        self._sampling = asyncio.create_task(self._sample())
