"""A Redis cluster of processes on this machine, whose nodes die, stand still, come back and hand slots over."""

import asyncio
import contextlib
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import redis.asyncio
import redis.exceptions

from turnmill.core.ports import free_ports
from turnmill.trajectories.base import CallKey, Change, Recorded
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.embedded import find_server
from turnmill.trajectories.store import TrajectoryStore

START_SECONDS = 60.0
NODE_TIMEOUT_MS = 1000
"""A node that is silent for so long is replaced by its replica."""

NUM_SLOTS = 16384


class ClusterNode:
    """A server process of the cluster."""

    def __init__(self, folder: Path, port: int, bus_port: int) -> None:
        self.folder = folder
        self.port, self.bus_port = port, bus_port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start the process, with the data and the place in the cluster that it had, and wait until it answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        options = {
            "bind": "127.0.0.1", "port": self.port, "cluster-port": self.bus_port, "dir": self.folder,
            "cluster-enabled": "yes", "cluster-node-timeout": NODE_TIMEOUT_MS, "cluster-require-full-coverage": "no",
            "cluster-allow-replica-migration": "no", "cluster-replica-validity-factor": 0, "save": "",
            "appendonly": "yes", "appendfsync": "everysec", "repl-diskless-sync-delay": 0,
        }  # fmt: skip
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        with (self.folder / "log").open("ab") as output:
            self._process = subprocess.Popen([find_server(), *words], stdout=output, stderr=output)  # noqa: ASYNC220
        async with asyncio.timeout(START_SECONDS):
            while not await self._answers():  # noqa: ASYNC110 (only it knows)
                await asyncio.sleep(0.02)

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End the process once its replicas and its disk have all that it acknowledged."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(START_SECONDS)
            self._process = None

    def pause(self) -> None:
        """Let the process stand still."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the process go on as if nothing had happened."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    async def execute(self, *words: str | int) -> object:
        """Send a command to this node alone."""
        async with redis.asyncio.Redis(port=self.port, protocol=2, socket_timeout=START_SECONDS) as client:
            return await client.execute_command(*words)

    async def role(self) -> str:
        """Return `master` or `slave`, as the protocol has it."""
        return (await self.replication())["role"]

    async def replication(self) -> dict[str, str]:
        """Return what it tells about its primary or replicas."""
        found = await self.execute("INFO", "replication")
        assert isinstance(found, dict)
        return found

    async def node_id(self) -> str:
        """Return the name by which other nodes know this one."""
        found = await self.execute("CLUSTER", "MYID")
        assert isinstance(found, bytes)
        return found.decode()

    async def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.folder / "log").read_text()
        try:
            return bool(await self.execute("PING"))
        except redis.exceptions.RedisError:
            return False


class StoreCluster:
    """Primaries, each with a share of the slots and, if asked for, a replica."""

    def __init__(self, folder: Path, *, primaries: int, replicas: bool) -> None:
        ports = iter(free_ports(2 * primaries * (1 + replicas)))
        self.shards = [
            [ClusterNode(folder / f"{shard}-{copy}", next(ports), next(ports)) for copy in range(1 + replicas)]
            for shard in range(primaries)
        ]

    @property
    def nodes(self) -> list[ClusterNode]:
        """All nodes."""
        return [node for shard in self.shards for node in shard]

    @property
    def url(self) -> str:
        """URL by which clients find all nodes."""
        return f"redis+cluster://127.0.0.1:{self.nodes[0].port}"

    async def start(self) -> None:
        """Start all nodes, join them, deal the slots and wait until every node knows all of it."""
        await asyncio.gather(*(node.start() for node in self.nodes))
        first, *others = self.nodes
        for node in others:
            await first.execute("CLUSTER", "MEET", "127.0.0.1", node.port, node.bus_port)
        bounds = [NUM_SLOTS * number // len(self.shards) for number in range(len(self.shards) + 1)]
        for (primary, *_), start, end in zip(self.shards, bounds, bounds[1:], strict=False):
            await primary.execute("CLUSTER", "ADDSLOTSRANGE", start, end - 1)
        for primary, *replicas in self.shards:
            for replica in replicas:
                await self._until(replica, await primary.node_id())
                await replica.execute("CLUSTER", "REPLICATE", await primary.node_id())
        async with asyncio.timeout(START_SECONDS):
            while not await self.is_whole():  # noqa: ASYNC110 (only it knows)
                await asyncio.sleep(0.05)

    async def is_whole(self) -> bool:
        """Return whether every node answers, knows a primary for each slot, and every replica has its data."""
        for node in self.nodes:
            try:
                info = await node.execute("CLUSTER INFO")
                assert isinstance(info, dict)
                if info["cluster_state"] != "ok" or int(info["cluster_known_nodes"]) != len(self.nodes):
                    return False
                if (await node.replication()).get("master_link_status", "up") != "up":
                    return False
            except redis.exceptions.RedisError:
                return False
        return all([len(await self._primaries(shard)) == 1 for shard in self.shards])

    async def primary_of(self, shard: list[ClusterNode]) -> ClusterNode:
        """Return the primary of a shard."""
        (primary,) = await self._primaries(shard)
        return primary

    async def move_slot(self, slot: int, source: ClusterNode, target: ClusterNode, *, pause: float = 0.0) -> None:
        """Hand a slot over key by key, as `valkey-cli --cluster reshard` does, with a pause after each key."""
        source_id, target_id = await source.node_id(), await target.node_id()
        await target.execute("CLUSTER", "SETSLOT", slot, "IMPORTING", source_id)
        await source.execute("CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        while keys := await source.execute("CLUSTER", "GETKEYSINSLOT", slot, 1):
            assert isinstance(keys, list)
            await source.execute("MIGRATE", "127.0.0.1", target.port, keys[0].decode(), 0, 5000)
            await asyncio.sleep(pause)
        for node in (target, source):
            await node.execute("CLUSTER", "SETSLOT", slot, "NODE", target_id)

    def stop(self) -> None:
        """End all processes."""
        for node in self.nodes:
            node.kill()

    async def _primaries(self, shard: list[ClusterNode]) -> list[ClusterNode]:
        return [node for node in shard if await node.role() == "master"]

    async def _until(self, node: ClusterNode, known: str) -> None:
        """Wait until a node knows another."""
        async with asyncio.timeout(START_SECONDS):
            while known not in str(await node.execute("CLUSTER", "NODES")):  # noqa: ASYNC110 (only it knows)
                await asyncio.sleep(0.02)


async def call(store: TrajectoryStore, name: str, number: int, after: str = "") -> str:
    """Add a number to the state of a trajectory, which must have those before it; return the version after it."""
    deadline = deadline_in(START_SECONDS)
    begun = await store.begin(CallKey(name, f"c{number}", after=after), "shell", deadline=deadline)
    if isinstance(begun, Recorded):
        return begun.version
    assert len(begun.state) == number, (name, number, dict(begun.state))
    await store.commit(begun, b"%d" % number, Change(written={f"{number}": b"x"}), deadline=deadline_in(START_SECONDS))
    return begun.version_after


@contextlib.asynccontextmanager
async def store_cluster(*, primaries: int = 3, replicas: bool = False) -> AsyncIterator[StoreCluster]:
    """Run a cluster."""
    with tempfile.TemporaryDirectory(prefix="store-cluster-") as folder:
        cluster = StoreCluster(Path(folder), primaries=primaries, replicas=replicas)
        try:
            await cluster.start()
            yield cluster
        finally:
            cluster.stop()
