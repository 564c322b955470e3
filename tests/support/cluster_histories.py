"""Histories of clients and tool servers whose store is a Redis cluster: primaries die or stand still, slots move."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from redis.crc import key_slot

from support.store_cluster import ClusterNode, StoreCluster
from support.store_histories import NUM_SERVERS, StoreHistory

FAILOVER_SECONDS = 60.0


class ClusterHistory(StoreHistory):
    """One run with its servers, three primaries with a replica each, and its faults."""

    async def _start(self, folder: Path) -> None:
        self._cluster = StoreCluster(folder, primaries=3, replicas=True)
        await self._cluster.start()
        self._start_servers([self._cluster.url] * NUM_SERVERS)

    async def _stop(self) -> None:
        for server in self._servers:
            await server.close()
        self._cluster.stop()

    async def _sample(self) -> None:
        """Remember nothing: no disk loses its last second here."""

    def _faults(self) -> dict[Callable[[], Awaitable[None]], int]:
        return {
            self._kill_server: 6, self._pause_server: 6, self._move_a_slot: 6,
            self._kill_a_primary: 1, self._pause_a_primary: 1,
        }  # fmt: skip

    async def _kill_a_primary(self) -> None:
        """The replica takes over with less than the primary had, which comes back as its replica."""
        primary = await self._lose_a_primary(ClusterNode.kill)
        await primary.start()
        await self._until_whole()

    async def _pause_a_primary(self) -> None:
        """When it goes on, it takes itself for the primary until others tell it."""
        primary = await self._lose_a_primary(ClusterNode.pause)
        primary.resume()
        await self._until_whole()

    async def _move_a_slot(self) -> None:
        """Hand a trajectory's slot over to another primary, key by key."""
        primaries = [await self._cluster.primary_of(shard) for shard in self._cluster.shards]
        source, target = self._chance.sample(primaries, 2)
        found = await source.execute("RANDOMKEY")
        if isinstance(found, bytes):
            pause = self._chance.choice((0.0, 0.05))
            await self._cluster.move_slot(key_slot(found), source, target, pause=pause)

    async def _lose_a_primary(self, fault: Callable[[ClusterNode], None]) -> ClusterNode:
        shard = self._chance.choice(self._cluster.shards)
        primary = await self._cluster.primary_of(shard)
        (replica,) = [node for node in shard if node is not primary]
        self._losses += 1
        self._whole.clear()
        fault(primary)
        async with asyncio.timeout(FAILOVER_SECONDS):
            while await replica.role() != "master":  # noqa: ASYNC110 (only it knows)
                await asyncio.sleep(0.05)
        return primary

    async def _until_whole(self) -> None:
        async with asyncio.timeout(FAILOVER_SECONDS):
            while not await self._cluster.is_whole():  # noqa: ASYNC110 (only the servers know)
                await asyncio.sleep(0.05)
        self._whole.set()
