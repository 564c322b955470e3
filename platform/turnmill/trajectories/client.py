"""Redis client that retries failed requests with backoff until a deadline."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import redis.asyncio
import redis.exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from turnmill.core.errors import SettingsError, StoreFullError, StoreUnavailableError
from turnmill.core.tasks import is_cancelled
from turnmill.trajectories.scripts import Script

Argument = str | bytes | int | float

FIRST_ATTEMPT_SECONDS = 1.0
MAX_ATTEMPT_SECONDS = 8.0
FIRST_PAUSE_SECONDS = 0.02
MAX_PAUSE_SECONDS = 0.5
DISCONNECT_SECONDS = 0.1
SCAN_COUNT = 1000

_TRANSIENT = (
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.TryAgainError,
    redis.exceptions.ClusterDownError,
    OSError,  # also TimeoutError
)
_TRANSIENT_REPLIES = ("BUSY ", "MISCONF", "NOREPLICAS", "UNBLOCKED")


class StoreClient:
    """Connections to one Redis, opened on demand and again after failures."""

    def __init__(self, url: str, *, max_connections: int = 32) -> None:
        try:
            pool = redis.asyncio.BlockingConnectionPool.from_url(
                url,
                max_connections=max_connections,
                timeout=None,
                protocol=2,
                # Fewer round trips before the first reply.
                lib_name=None,
                lib_version=None,
                socket_timeout=None,
                socket_connect_timeout=None,
                # Retries are decided in one place: `_retry`.
                retry=Retry(NoBackoff(), 0),
            )
        except ValueError as error:
            raise SettingsError(
                f"The store's URL cannot be used: {error} "
                "Write redis://HOST:PORT/0, rediss://HOST:PORT/0 or unix:///PATH."
            ) from error
        self._redis = redis.asyncio.Redis(connection_pool=pool)
        self.location = _location(pool)
        self.retries = 0
        """Number of retried requests."""

    async def run(self, script: Script, key: str, *arguments: Argument, deadline: float) -> Any:
        """Run an idempotent script on a key."""

        async def request() -> Any:
            try:
                return await self._redis.execute_command("EVALSHA", script.digest, 1, key, *arguments)
            except redis.exceptions.NoScriptError:
                return await self._redis.execute_command("EVAL", script.source, 1, key, *arguments)

        return await self._retry(request, deadline)

    async def command(self, *words: Argument, deadline: float) -> Any:
        """Send one idempotent command."""
        return await self._retry(lambda: self._redis.execute_command(*words), deadline)

    async def scan(self, pattern: str, *, deadline: float) -> AsyncIterator[bytes]:
        """Yield the names of the keys that match a pattern, each at least once."""
        cursor: int | bytes = 0
        while True:
            cursor, names = await self.command("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT, deadline=deadline)
            for name in names:
                yield name
            if int(cursor) == 0:
                return

    async def close(self) -> None:
        """Close all connections."""
        await self._redis.aclose()
        await self._redis.connection_pool.disconnect()

    async def _drop_idle_connections(self) -> None:
        """Close the idle connections: the failure of one probably affects them, too."""
        try:
            # Closing a connection to a silent peer may never end.
            async with asyncio.timeout(DISCONNECT_SECONDS):
                await self._redis.connection_pool.disconnect(inuse_connections=False)
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            # A task that gives up waiting for a connection to close cancels the wait of all others for it.
            if is_cancelled():
                raise

    async def _retry(self, request: Callable[[], Awaitable[Any]], deadline: float) -> Any:
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
                    f"The store at {self.location} is one node of a cluster and holds other keys ({error}), "
                    "and no redirection is followed: name a proxy that follows them, or a Redis that is no cluster."
                ) from error
            except redis.exceptions.RedisError as error:
                if not isinstance(error, _TRANSIENT) and not str(error).startswith(_TRANSIENT_REPLIES):
                    raise
                cause: Exception = error
            except OSError as error:
                cause = error
                await self._drop_idle_connections()
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


def deadline_in(seconds: float) -> float:
    """Return the deadline a number of seconds from now, in the event loop's time."""
    return asyncio.get_running_loop().time() + seconds


def _location(pool: redis.asyncio.ConnectionPool) -> str:
    """Return the address of the store without its password."""
    options = pool.connection_kwargs
    return options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
