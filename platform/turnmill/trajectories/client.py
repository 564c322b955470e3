"""Redis client that retries failed requests with backoff until a deadline."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import redis.exceptions

from turnmill.core.errors import StoreFullError, StoreUnavailableError
from turnmill.trajectories.connections import Argument, Node, NodeGoneError, Reply, connect
from turnmill.trajectories.scripts import Script

FIRST_ATTEMPT_SECONDS = 1.0
MAX_ATTEMPT_SECONDS = 8.0
FIRST_PAUSE_SECONDS = 0.02
MAX_PAUSE_SECONDS = 0.5

_TRANSIENT = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.TryAgainError,
    redis.exceptions.ClusterError,
    redis.exceptions.RedisClusterException,
)
T = TypeVar("T")

_TRANSIENT_REPLIES = ("BUSY ", "MISCONF", "NOREPLICAS", "UNBLOCKED")
_MOVING = "non local key"
"""In the reply to a script one of whose keys a cluster is moving to another node."""


class StoreClient:
    """Requests to one Redis or to a Redis cluster, sent again after failures."""

    def __init__(self, url: str, *, max_connections: int = 32) -> None:
        self._connections = connect(url, max_connections=max_connections)
        self.location = self._connections.location
        self.retries = 0
        """Number of retried requests."""

    async def run(
        self, script: Script, key: str, *arguments: Argument, also: Sequence[str] = (), deadline: float
    ) -> Reply:
        """Run an idempotent script on a key.

        `also` has the suffixes of further keys that it reads or writes. Without them, the script would run with a part
        of the keys while a cluster moves them to another node.
        """
        words = (1 + len(also), key, *(key + suffix for suffix in also), *arguments)

        async def request() -> Reply:
            try:
                return await self._connections.execute("EVALSHA", script.digest, *words)
            except redis.exceptions.NoScriptError:
                return await self._connections.execute("EVAL", script.source, *words)

        return await self._retry(request, deadline, key)

    async def command(self, name: str, *words: Argument, deadline: float) -> Reply:
        """Send one idempotent command, whose first word is its key."""
        key = str(words[0]) if words else None
        return await self._retry(lambda: self._connections.execute(name, *words), deadline, key)

    async def info(self, *, deadline: float) -> list[Mapping[str, Reply]]:
        """Return the fields of INFO of each server that holds keys."""

        async def request() -> list[Mapping[str, Reply]]:
            try:
                return [await self._connections.info(node) for node in await self._connections.nodes()]
            except NodeGoneError as error:
                raise redis.exceptions.ClusterError("A node has left the cluster.") from error

        return await self._retry(request, deadline)

    async def scan(self, pattern: str, *, deadline: float) -> AsyncIterator[bytes]:
        """Yield the names of the keys that match a pattern, each at least once."""
        while True:
            try:
                for node in await self._retry(self._connections.nodes, deadline):
                    async for name in self._scan(node, pattern, deadline):
                        yield name
            except NodeGoneError:
                # Others have its keys now.
                continue
            return

    async def unlink(self, *keys: str | bytes, deadline: float) -> None:
        """Delete keys, of any number of trajectories."""
        await self._retry(lambda: self._connections.unlink(*keys), deadline)

    async def close(self) -> None:
        """Close all connections."""
        await self._connections.close()

    async def _scan(self, node: Node, pattern: str, deadline: float) -> AsyncIterator[bytes]:
        cursor = 0
        while True:
            request = partial(self._connections.scan, node, cursor, pattern)
            cursor, names = await self._retry(request, deadline)
            for name in names:
                yield name
            if cursor == 0:
                return

    async def _retry(self, request: Callable[[], Awaitable[T]], deadline: float, key: str | None = None) -> T:
        loop = asyncio.get_running_loop()
        attempt_seconds, pause_seconds = FIRST_ATTEMPT_SECONDS, FIRST_PAUSE_SECONDS
        while True:
            try:
                async with asyncio.timeout_at(min(deadline, loop.time() + attempt_seconds)):
                    return await request()
            except redis.exceptions.OutOfMemoryError as error:
                raise StoreFullError(
                    f"The store at {self.location} is at its memory limit: finish trajectories, or raise maxmemory."
                ) from error
            except redis.exceptions.AskError as error:
                raise StoreUnavailableError(
                    f"The store at {self.location} is one node of a cluster and holds other keys ({error}): "
                    f"write redis+cluster://{self.location}, so that the others are asked as well."
                ) from error
            except (redis.exceptions.RedisError, redis.exceptions.RedisClusterException) as error:
                if not isinstance(error, _TRANSIENT) and not _is_transient(str(error)):
                    raise
                cause: Exception = error
            except OSError as error:  # also TimeoutError
                cause = error
                await self._connections.recover(key)
            pause = pause_seconds * random.uniform(0.5, 1.0)
            if loop.time() + pause >= deadline:
                reason = str(cause) or "no answer"
                raise StoreUnavailableError(
                    f"The store at {self.location} did not answer within the deadline ({reason}): send the call again."
                ) from cause
            await asyncio.sleep(pause)
            self.retries += 1
            # A store that is slow, but healthy, answers an attempt that waits longer.
            attempt_seconds = min(attempt_seconds * 2, MAX_ATTEMPT_SECONDS)
            pause_seconds = min(pause_seconds * 2, MAX_PAUSE_SECONDS)


def _is_transient(reply: str) -> bool:
    return reply.startswith(_TRANSIENT_REPLIES) or _MOVING in reply


def deadline_in(seconds: float) -> float:
    """Return the deadline a number of seconds from now, in the event loop's time."""
    return asyncio.get_running_loop().time() + seconds
