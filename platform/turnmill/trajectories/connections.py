"""Connections to a Redis, or to the nodes of a Redis cluster, opened on demand and again after failures."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

import redis.asyncio
import redis.exceptions
from redis._parsers import AsyncCommandsParser
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.cluster import PRIMARY

from turnmill.core.errors import SettingsError
from turnmill.core.tasks import is_cancelled

Argument = str | bytes | int | float
Reply = Any
"""What a server answers, as redis-py parses it."""

Node = ClusterNode | None
"""A node of a cluster; None is the only server."""

CLUSTER_SUFFIX = "+cluster"
SCHEMES = ("redis", "rediss", "unix", f"redis{CLUSTER_SUFFIX}", f"rediss{CLUSTER_SUFFIX}")
FORMS = "redis://HOST:PORT/0, rediss://HOST:PORT/0 or unix:///PATH, or for a cluster redis+cluster://HOST:PORT"
DISCONNECT_SECONDS = 0.1
SCAN_COUNT = 1000
NODE_CONNECT_SECONDS, NODE_ANSWER_SECONDS = 0.5, 8.0
"""How long a node of a cluster may take to accept a connection, and to answer."""


class NodeGoneError(Exception):
    """A node that was asked is no primary of the cluster any more."""


class Connections(Protocol):
    """Requests to a store, each sent once: whoever calls decides about another try."""

    location: str
    """Address without the password."""

    async def execute(self, *words: Argument) -> Reply:
        """Send a command; the key that it names decides about the node."""

    async def scan(self, node: Node, cursor: int, pattern: str) -> tuple[int, Sequence[bytes]]:
        """Return the next cursor, 0 at the end, and names of keys at a node. Raises NodeGoneError."""

    async def info(self, node: Node) -> Mapping[str, Reply]:
        """Return the fields of a node's INFO. Raises NodeGoneError."""

    async def nodes(self) -> Sequence[Node]:
        """Return the nodes that together hold all keys."""

    async def unlink(self, *keys: str | bytes) -> int:
        """Delete keys, wherever they are; return how many there were."""

    async def recover(self, key: str | None) -> None:
        """After a request about this key got no answer: do what may help the next one."""

    async def close(self) -> None:
        """Close all connections."""


def connect(url: str, *, max_connections: int) -> Connections:
    """Return the connections to the store at a URL. Raises SettingsError."""
    try:
        if urlsplit(url).scheme.endswith(CLUSTER_SUFFIX):
            return ClusterConnections(url.replace(CLUSTER_SUFFIX, "", 1), max_connections)
        return ServerConnections(url, max_connections)
    except (ValueError, redis.exceptions.RedisClusterException) as error:
        raise SettingsError(f"The store's URL cannot be used: {error} Write {FORMS}.") from error


class ServerConnections:
    """Connections to one Redis."""

    def __init__(self, url: str, max_connections: int) -> None:
        self._pool = redis.asyncio.BlockingConnectionPool.from_url(
            url,
            max_connections=max_connections,
            timeout=None,
            protocol=2,
            # Fewer round trips before the first reply.
            lib_name=None,
            lib_version=None,
            socket_timeout=None,
            socket_connect_timeout=None,
            # Retries are decided in one place: `StoreClient`.
            retry=Retry(NoBackoff(), 0),
        )
        self._redis = redis.asyncio.Redis(connection_pool=self._pool)
        options = self._pool.connection_kwargs
        self.location = options.get("path") or f"{options.get('host', 'localhost')}:{options.get('port', 6379)}"

    async def execute(self, *words: Argument) -> Reply:
        return await self._redis.execute_command(*words)

    async def scan(self, node: Node, cursor: int, pattern: str) -> tuple[int, Sequence[bytes]]:
        next_cursor, names = await self.execute("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
        return int(next_cursor), names

    async def info(self, node: Node) -> Mapping[str, Reply]:
        found: Mapping[str, Reply] = await self.execute("INFO")
        return found

    async def nodes(self) -> Sequence[Node]:
        return [None]

    async def unlink(self, *keys: str | bytes) -> int:
        return int(await self.execute("UNLINK", *keys))

    async def recover(self, key: str | None) -> None:
        """Close the idle connections: the failure of one probably affects them, too."""
        try:
            # Closing a connection to a silent peer may never end.
            async with asyncio.timeout(DISCONNECT_SECONDS):
                await self._pool.disconnect(inuse_connections=False)
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            # A task that gives up waiting for a connection to close cancels the wait of all others for it.
            if is_cancelled():
                raise

    async def close(self) -> None:
        await self._redis.aclose()
        await self._pool.disconnect()


class ClusterConnections:
    """Connections to the nodes of a Redis cluster, which are found through the one at the URL."""

    def __init__(self, url: str, max_connections: int) -> None:
        self._free = asyncio.Semaphore(max_connections)
        self._redis = RedisCluster.from_url(
            url,
            # One more, by which nodes are asked for the slots.
            max_connections=max_connections + 1,
            protocol=2,
            driver_info=None,
            # What the others have is served while a node is away.
            require_full_coverage=False,
            socket_timeout=NODE_ANSWER_SECONDS,
            socket_connect_timeout=NODE_CONNECT_SECONDS,
            # Retries are decided in one place: `StoreClient`.
            retry=Retry(NoBackoff(), 0),
        )
        self._redis.commands_parser = _FirstWordIsKey()
        (first,) = self._redis.startup_nodes
        self.location = first.name

    async def execute(self, *words: Argument) -> Reply:
        async with self._request():
            return await self._redis.execute_command(*words)

    async def scan(self, node: Node, cursor: int, pattern: str) -> tuple[int, Sequence[bytes]]:
        # redis-py answers with a cursor for each node that was asked.
        cursors, names = await self._execute_at(node, "SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
        (next_cursor,) = cursors.values()
        return int(next_cursor), names

    async def info(self, node: Node) -> Mapping[str, Reply]:
        found: Mapping[str, Reply] = await self._execute_at(node, "INFO")
        return found

    async def nodes(self) -> Sequence[Node]:
        async with self._request():
            await self._redis.initialize()
            return self._redis.get_primaries()

    async def unlink(self, *keys: str | bytes) -> int:
        async with self._request():
            return int(await self._redis.unlink(*keys))

    async def recover(self, key: str | None) -> None:
        """Ask other nodes who has the key now: one that stands still, or cannot be reached, gives no answer."""
        with contextlib.suppress(redis.exceptions.RedisError, redis.exceptions.RedisClusterException, TimeoutError):
            node = self._redis.get_node_from_key(key) if key is not None else self._redis.get_default_node()
            async with asyncio.timeout(NODE_CONNECT_SECONDS):
                await self._redis.nodes_manager.initialize(last_failed_node_name=node.name if node else None)

    async def close(self) -> None:
        await self._redis.aclose()
        # It closes nothing if it was about to ask for the slots again.
        for nodes in ("nodes_cache", "startup_nodes"):
            await self._redis.nodes_manager.aclose(nodes)

    async def _execute_at(self, node: Node, *words: Argument) -> Reply:
        assert node is not None
        async with self._request():
            known = self._redis.get_node(node_name=node.name)
            if known is None or known.server_type != PRIMARY:
                raise NodeGoneError
            return await self._redis.execute_command(*words, target_nodes=known)

    @contextlib.asynccontextmanager
    async def _request(self) -> AsyncIterator[None]:
        async with self._free:
            try:
                yield
            except redis.exceptions.RedisClusterException as error:
                self._ask_at_url_again(error)
                raise
            except AttributeError as error:
                # When a node fails, redis-py closes connections to it that it has just given to other requests.
                if error.obj is not None:
                    raise
                raise redis.exceptions.ConnectionError("The connection was closed.") from error

    def _ask_at_url_again(self, error: redis.exceptions.RedisClusterException) -> None:
        """Look for the cluster at the URL, too: all nodes may have other addresses than those that were known."""
        if "not enabled" in str(error):
            raise SettingsError(
                f"The store at {self.location} is no cluster, or its user may not ask for the slots: write redis:// "
                "instead of redis+cluster://, or let the user call CLUSTER SLOTS."
            ) from error
        for node in self._redis.startup_nodes:
            self._redis.nodes_manager.startup_nodes.setdefault(node.name, node)


class _FirstWordIsKey(AsyncCommandsParser):
    """Tells the key of a command without asking a server for the table of all commands, which is long."""

    async def initialize(self, node: ClusterNode | None = None) -> None:
        """Ask for nothing."""

    async def get_keys(self, *args: Argument) -> tuple[str, ...]:
        return tuple(map(str, args[1:2]))
