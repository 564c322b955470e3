"""Asks Redis within a deadline: what fails is asked again, by itself and with pauses that grow."""

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

FIRST_ATTEMPT_SECONDS = 1.0
MAX_ATTEMPT_SECONDS = 8.0
FIRST_PAUSE_SECONDS = 0.02
MAX_PAUSE_SECONDS = 0.5
LEAVE_SECONDS = 0.1
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
    """Connections to one Redis, opened when they are needed and after every failure anew."""

    def __init__(self, url: str, *, max_connections: int = 32) -> None:
        try:
            pool = redis.asyncio.BlockingConnectionPool.from_url(
                url,
                max_connections=max_connections,
                timeout=None,
                protocol=2,
                # Fewer round trips to the first answer.
                lib_name=None,
                lib_version=None,
                socket_timeout=None,
                socket_connect_timeout=None,
                # One place decides what is asked again and until when: `_ask`.
                retry=Retry(NoBackoff(), 0),
            )
        except ValueError as error:
            raise SettingsError(
                f"The store's URL cannot be used: {error} "
                "Write redis://HOST:PORT/0, rediss://HOST:PORT/0 or unix:///PATH."
            ) from error
        self._redis = redis.asyncio.Redis(connection_pool=pool)
        self.place = _place(pool)
        self.retries = 0
        """How often something was asked again."""

    async def run(self, script: Script, key: str, *arguments: Any, deadline: float) -> Any:
        """Run a script on a key; its effect is the same when it runs twice."""

        async def ask() -> Any:
            try:
                return await self._redis.execute_command("EVALSHA", script.digest, 1, key, *arguments)
            except redis.exceptions.NoScriptError:
                return await self._redis.execute_command("EVAL", script.source, 1, key, *arguments)

        return await self._ask(ask, deadline)

    async def command(self, *words: Any, deadline: float) -> Any:
        """Send one command that may be sent twice."""
        return await self._ask(lambda: self._redis.execute_command(*words), deadline)

    async def scan(self, pattern: str, *, deadline: float) -> AsyncIterator[bytes]:
        """The names of the keys that fit a pattern, each at least once."""
        cursor: Any = 0
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
        """What made one connection silent has made the idle ones silent too."""
        try:
            # Taking leave of a silent peer may take for ever.
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._redis.connection_pool.disconnect(inuse_connections=False)
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            # Who gives up waiting for a connection to close ends the wait of all others for it.
            if is_cancelled():
                raise

    async def _ask(self, ask: Callable[[], Awaitable[Any]], deadline: float) -> Any:
        loop = asyncio.get_running_loop()
        attempt_seconds, pause_seconds = FIRST_ATTEMPT_SECONDS, FIRST_PAUSE_SECONDS
        while True:
            try:
                async with asyncio.timeout_at(min(deadline, loop.time() + attempt_seconds)):
                    return await ask()
            except redis.exceptions.OutOfMemoryError as error:
                raise StoreFullError(
                    f"The store at {self.place} has reached its memory limit: finish trajectories, or raise maxmemory."
                ) from error
            except redis.exceptions.AskError as error:
                raise StoreUnavailableError(
                    f"The store at {self.place} is one node of a cluster and holds another part of the keys ({error}), "
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
                    f"The store at {self.place} did not answer within the deadline ({reason}): send the call again."
                ) from cause
            await asyncio.sleep(pause)
            self.retries += 1
            # A store that is slow but well answers an attempt that waits longer.
            attempt_seconds = min(attempt_seconds * 2, MAX_ATTEMPT_SECONDS)
            pause_seconds = min(pause_seconds * 2, MAX_PAUSE_SECONDS)


def deadline_in(seconds: float) -> float:
    """A deadline from here on, in the event loop's time."""
    return asyncio.get_running_loop().time() + seconds


def _place(pool: redis.asyncio.ConnectionPool) -> str:
    """Where the store is, without passwords."""
    options = pool.connection_kwargs
    return options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"
