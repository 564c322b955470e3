"""A store of several servers: a Redis cluster, whose nodes fail and hand their keys over."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from redis.crc import key_slot

from support.charts import TEAM
from support.store_cluster import StoreCluster, call, store_cluster
from turnmill.core.errors import LostWriteError, SettingsError, StoreUnavailableError
from turnmill.core.ports import free_ports
from turnmill.core.trajectory import TrajectoryMetadata, TrajectoryOutcome, Turn
from turnmill.observability.tool_metrics import StoreHealth
from turnmill.trajectories.clean_up import forget_run
from turnmill.trajectories.client import StoreClient, deadline_in
from turnmill.trajectories.embedded import EmbeddedStore
from turnmill.trajectories.journal import TrajectoryJournal
from turnmill.trajectories.keys import Keys
from turnmill.trajectories.store import TrajectoryStore

SECONDS = 60.0
RULES = TEAM / "files" / "store"
NAMES = [f"t{number}" for number in range(30)]
TURN = Turn((1,), (2,), response_text="turn")


@pytest.fixture
async def cluster() -> AsyncIterator[StoreCluster]:
    async with store_cluster() as started:
        yield started


def soon() -> float:
    return deadline_in(SECONDS)


async def test_trajectories_are_on_all_nodes_and_found_counted_and_deleted_there(cluster: StoreCluster):
    store, journal = (kind.from_url(cluster.url, "run") for kind in (TrajectoryStore, TrajectoryJournal))
    health = StoreHealth()
    for name in NAMES:
        await call(store, name, 0)
        trajectory = await journal.open(name, metadata=TrajectoryMetadata(step=1), deadline=soon())
        trajectory = await journal.append(trajectory, TURN, deadline=soon())
        await journal.finish(trajectory, TrajectoryOutcome(), deadline=soon())

    assert all([await node.execute("DBSIZE") for node in cluster.nodes])
    assert await store.count(deadline=soon()) == len(NAMES)
    assert await journal.names(deadline=soon()) == sorted(NAMES)
    read = [await journal.read(name, deadline=soon()) for name in NAMES]
    assert [each.turns for each in read if each is not None] == [(TURN,)] * len(NAMES)
    health.show(await store.info(deadline=soon()))
    metrics = {metric.name: metric.samples[0].value for metric in health.collect()}
    assert metrics["turnmill_store_keys"] == sum([await node.execute("DBSIZE") for node in cluster.nodes])
    await store.ping(deadline=soon())

    client = StoreClient(cluster.url)
    assert await forget_run(client, "run", deadline=soon()) == metrics["turnmill_store_keys"]
    assert await store.count(deadline=soon()) == 0
    for each in (client, store, journal):
        await each.close()


async def test_a_call_is_never_executed_with_a_part_of_its_keys_while_a_slot_is_handed_over(cluster: StoreCluster):
    store = TrajectoryStore.from_url(cluster.url, "run")
    version, number = await call(store, "t", 0), 1
    moving = True

    async def play() -> None:
        nonlocal version, number
        while moving or number < 10:
            version = await call(store, "t", number, version)
            number += 1

    async def move() -> None:
        nonlocal moving
        slot = key_slot(Keys("run").trajectory("t").encode())
        places = [shard[0] for shard in cluster.shards]
        (source,) = [node for node in places if await node.execute("CLUSTER", "COUNTKEYSINSLOT", slot)]
        for target in [node for node in places if node is not source] * 3:
            await cluster.move_slot(slot, source, target, pause=0.1)
            source = target
            await asyncio.sleep(0.1)
        moving = False

    await asyncio.gather(play(), move())

    assert number >= 10
    await store.close()


async def test_a_cluster_all_of_whose_nodes_have_other_addresses_is_found_at_its_url(cluster: StoreCluster):
    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", cluster.nodes[0].port)
        await asyncio.gather(copy(reader, there_writer), copy(there_reader, writer), return_exceptions=True)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            while data := await reader.read(4096):
                writer.write(data)

    door = await asyncio.start_server(forward, "127.0.0.1", 0)
    store = TrajectoryStore.from_url(f"redis+cluster://127.0.0.1:{door.sockets[0].getsockname()[1]}", "run")
    versions = {name: await call(store, name, 0) for name in NAMES}

    for node, port in zip(cluster.nodes, free_ports(len(cluster.nodes)), strict=True):
        node.stop()
        node.port = port
    await asyncio.gather(*(node.start() for node in cluster.nodes))

    for name in NAMES:
        await call(store, name, 1, versions[name])
    await store.close()
    door.close()


async def test_users_of_the_chart_need_one_more_command(cluster: StoreCluster):
    def url(name: str) -> str:
        return cluster.url.replace("://", f"://{name}:of-{name}@")

    for name in ("tool-server", "trainer", "clean-up"):
        rules = [line for line in (RULES / f"{name}.acl").read_text().splitlines() if not line.startswith("#")]
        words = " ".join([*rules, "+cluster|slots"]).split()
        for node in cluster.nodes:
            await node.execute("ACL", "SETUSER", name, "on", f">of-{name}", *words)
    store = TrajectoryStore.from_url(url("tool-server"), "run")
    journal = TrajectoryJournal.from_url(url("trainer"), "run")
    for name in NAMES:
        await call(store, name, 0)
        await journal.append(await journal.open(name, deadline=soon()), TURN, deadline=soon())
    await store.info(deadline=soon())
    assert await journal.names(deadline=soon()) == sorted(NAMES)
    clean_up = StoreClient(url("clean-up"))
    assert await forget_run(clean_up, "run", deadline=soon()) == 5 * len(NAMES)
    for each in (store, journal, clean_up):
        await each.close()


async def test_a_url_of_a_cluster_for_a_single_server_says_what_to_write():
    async with EmbeddedStore(tcp=True) as server:
        client = StoreClient(server.url.replace("redis://", "redis+cluster://").removesuffix("/0"))

        with pytest.raises(SettingsError, match=r"no cluster.*write redis://"):
            await client.command("GET", "key", deadline=soon())

        await client.close()


async def test_a_url_of_one_node_says_how_the_others_are_asked(cluster: StoreCluster):
    client = StoreClient(cluster.url.replace("+cluster", ""))

    with pytest.raises(StoreUnavailableError, match=r"write redis\+cluster://127.0.0.1:"):
        await asyncio.gather(*(client.command("GET", name, deadline=soon()) for name in NAMES))

    await client.close()


@pytest.mark.parametrize("url", ["redis+cluster:///socket", "redis+cluster://host:6379/1", "unix+cluster:///socket"])
def test_a_url_that_no_cluster_has_is_refused(url: str):
    with pytest.raises(SettingsError, match=r"redis\+cluster://HOST:PORT"):
        StoreClient(url)


async def test_nobody_answers_until_the_deadline():
    client = StoreClient("redis+cluster://127.0.0.1:9")

    with pytest.raises(StoreUnavailableError, match="did not answer within the deadline"):
        await client.command("GET", "key", deadline=deadline_in(1))

    await client.close()


@pytest.mark.parametrize("fault", ["kill", "pause"])
async def test_a_replica_takes_over_and_what_it_has_not_got_is_noticed(fault: str):
    async with store_cluster(replicas=True) as cluster:
        store, journal = (kind.from_url(cluster.url, "run") for kind in (TrajectoryStore, TrajectoryJournal))
        over = asyncio.Event()

        async def play(name: str) -> str:
            trajectory = await journal.open(name, deadline=soon())
            version = ""
            while not over.is_set() or len(trajectory.turns) < 3:
                try:
                    version = await call(store, name, len(trajectory.turns), version)
                except LostWriteError:
                    return "lost"
                trajectory = await journal.append(trajectory, TURN, deadline=soon())
                await asyncio.sleep(0.05)
            await journal.finish(trajectory, TrajectoryOutcome(), deadline=soon())
            read = await journal.read(name, deadline=soon())
            return "complete" if read is not None and read.turns == trajectory.turns else "other turns"

        async def break_one() -> None:
            await asyncio.sleep(1)
            (primary, replica) = cluster.shards[0]
            getattr(primary, fault)()
            async with asyncio.timeout(SECONDS):
                while await replica.role() != "master":  # noqa: ASYNC110 (only it knows)
                    await asyncio.sleep(0.1)
            await asyncio.sleep(1)
            over.set()

        *ended, _ = await asyncio.gather(*map(play, NAMES), break_one())

        # The replica gets writes after they are answered.
        assert set(ended) <= {"complete", "lost"}
        assert ended.count("complete") > len(NAMES) / 2
        await store.close()
        await journal.close()
