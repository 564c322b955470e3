"""The store behind a faulty link: operations take effect once or not at all and end by their deadlines."""

import asyncio
import random
import subprocess
from contextlib import suppress

import pytest

from turnmill.core.errors import StaleClaimError, StoreError, StoreUnavailableError
from turnmill.core.ports import free_port
from turnmill.core.trajectory import Turn
from turnmill.trajectories.base import CallKey, Change, Claim, Recorded
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.embedded import find_server
from turnmill.trajectories.journal import TrajectoryJournal
from turnmill.trajectories.settings import StoreSettings

TOOL = "bash_terminal"
KEY = CallKey("trajectory-1", "call-1")
SOON = 0.5
AMPLE = 60.0
QUICK = StoreSettings(lease_seconds=0.3)


async def begin(store, key=KEY, seconds=AMPLE):
    return await store.begin(key, TOOL, deadline=deadline_in(seconds))


async def count_up(store, held, seconds=AMPLE):
    """Execute a call whose effect shows how often it was executed."""
    number = int(held.state.get("number", b"0")) + 1
    await store.commit(held, b"%d" % number, Change(written={"number": b"%d" % number}), deadline=deadline_in(seconds))


async def number(store, trajectory_id="trajectory-1"):
    held = await begin(store, CallKey(trajectory_id, None))
    await store.release(held, deadline=deadline_in(AMPLE))
    return int(held.state.get("number", b"0"))


async def retries(store, count):
    """Wait until the store has counted so many retries."""
    async with asyncio.timeout(AMPLE):
        while store.num_retries < count:  # noqa: ASYNC110 (a count has no event)
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
async def _load_scripts(link, new_server, tcp_url):
    """Load the scripts into the store, so that the lost answers in these tests are those of the scripts."""
    if link is None:
        return
    store = new_server(url=tcp_url)
    await count_up(store, await begin(store, CallKey("another trajectory", None)))
    journal = TrajectoryJournal.from_url(tcp_url, "another run")
    trajectory = await journal.open("trajectory", deadline=deadline_in(AMPLE))
    await journal.append(trajectory, Turn(prompt_ids=(1,), response_ids=(2,)), deadline=deadline_in(AMPLE))
    await journal.close()


async def test_calls_wait_for_a_slow_store(new_server, link, linked_url):
    store = new_server(url=linked_url)
    # Longer than the first attempt waits, and twice so with the password.
    link.delay(0.7)

    await count_up(store, await begin(store))

    assert await begin(store) == Recorded(b"1")


async def test_a_call_continues_when_the_store_is_reachable_again(new_server, link, linked_url):
    store = new_server(url=linked_url)
    held = await begin(store)
    link.cut()
    commit = asyncio.create_task(count_up(store, held))
    await retries(store, 3)

    link.restore()

    await commit
    assert await number(store) == 1


@pytest.mark.parametrize("fault", ["cut", "reset", "silence upstream", "silence downstream"])
async def test_an_unreachable_store_raises_store_unavailable_at_the_deadline_and_recovers(
    new_server, link, linked_url, fault
):
    store = new_server(url=linked_url)
    await count_up(store, await begin(store))
    fault, *direction = fault.split()
    getattr(link, fault)(*direction)

    for key in (KEY, CallKey("trajectory-2", None)):
        with pytest.raises(StoreUnavailableError, match="send the call again"):
            await begin(store, key, SOON)
    link.restore()

    assert await begin(store) == Recorded(b"1")


async def test_a_store_that_was_never_reachable_raises_store_unavailable(new_server, link, linked_url):
    store = new_server(url=linked_url)
    link.cut()

    with pytest.raises(StoreUnavailableError):
        await begin(store, seconds=SOON)


async def test_a_claim_whose_answer_was_lost_is_retried_as_the_same_claim(new_server, link, linked_url, tcp_url):
    store = new_server(StoreSettings(lease_seconds=300), url=linked_url)
    await store.ping(deadline=deadline_in(AMPLE))
    with link.silent("downstream"):
        begun = asyncio.create_task(begin(store))
        await retries(store, 1)

    # A second claim would have to wait for the first: the lease is longer than the deadline.
    assert isinstance(await begun, Claim)


async def test_a_commit_whose_answer_was_lost_takes_effect_once(new_server, link, linked_url):
    store = new_server(url=linked_url)
    held = await begin(store)
    with link.silent("downstream"):
        commit = asyncio.create_task(count_up(store, held))
        await retries(store, 1)

    await commit

    assert await number(store) == 1


async def test_a_commit_without_an_answer_before_its_deadline_takes_effect_once(new_server, link, linked_url, tcp_url):
    store, witness = new_server(url=linked_url), new_server(url=tcp_url)
    held = await begin(store)
    with link.silent("downstream"), pytest.raises(StoreUnavailableError):
        await count_up(store, held, 3.0)

    # The client repeats the call: the store has its record.
    assert await begin(store) == Recorded(b"1")
    assert await number(witness) == 1


async def test_a_commit_that_never_arrived_has_no_effect_and_the_call_is_executed_again(
    new_server, link, linked_url, tcp_url
):
    store, witness = new_server(QUICK, url=linked_url), new_server(QUICK, url=tcp_url)
    held = await begin(store)
    with link.silent("upstream"), pytest.raises(StoreUnavailableError):
        await count_up(store, held, SOON)

    await count_up(witness, await begin(witness))

    assert await begin(store) == Recorded(b"1")
    assert await number(witness) == 1


async def test_a_server_cut_off_from_the_store_is_fenced(new_server, link, linked_url, tcp_url):
    store, other = new_server(QUICK, url=linked_url), new_server(QUICK, url=tcp_url)
    held = await begin(store)
    link.cut()
    await count_up(other, await begin(other))
    link.restore()

    with pytest.raises(StaleClaimError):
        await count_up(store, held)

    assert await number(other) == 1


async def test_large_state_is_read_whole_or_not_at_all(new_server, link, linked_url, tcp_url):
    large = random.Random(1).randbytes(1024**2)
    writer, reader = new_server(url=tcp_url), new_server(url=linked_url)
    await writer.commit(await begin(writer), b"done", Change(written={"large": large}), deadline=deadline_in(AMPLE))
    link.close_after(600_000)
    reading = asyncio.create_task(begin(reader, CallKey("trajectory-1", "call-2")))
    await retries(reader, 2)

    link.restore()

    assert (await reading).state == {"large": large}


async def test_a_turn_whose_record_was_not_confirmed_is_recorded_once(link, linked_url):
    journal = TrajectoryJournal.from_url(linked_url, "run of turns")
    trajectory = await journal.open("trajectory", deadline=deadline_in(AMPLE))
    turn = Turn(prompt_ids=(1,), response_ids=(2,))
    with link.silent("downstream"), pytest.raises(StoreUnavailableError):
        await journal.append(trajectory, turn, deadline=deadline_in(SOON))

    trajectory = await journal.append(trajectory, turn, deadline=deadline_in(AMPLE))

    assert (await journal.read("trajectory", deadline=deadline_in(AMPLE))).turns == (turn,)
    await journal.close()


class Redis:
    """A Redis server that writes every command to disk before it answers."""

    def __init__(self, folder, port):
        self.url = f"redis://127.0.0.1:{port}"
        self._command = [find_server(), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder), "--save", ""]
        self.start()

    def start(self):
        command = [*self._command, "--appendonly", "yes", "--appendfsync", "always"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def kill(self):
        self._process.kill()
        self._process.wait()


async def test_a_call_survives_a_kill_of_redis(new_server, link, tmp_path):
    server = Redis(tmp_path, free_port())
    store = new_server(url=server.url)
    await count_up(store, await begin(store))
    held = await begin(store, CallKey("trajectory-1", "call-2"))
    server.kill()
    commit = asyncio.create_task(count_up(store, held))
    await retries(store, store.num_retries + 2)

    server.start()

    await commit
    assert await begin(store) == Recorded(b"1")
    assert await number(store) == 2
    server.kill()


async def test_every_call_takes_effect_once_under_repeated_faults_of_the_link(new_server, link, linked_url, tcp_url):
    """Three servers, two of them behind a link that fails repeatedly; every call is sent until it is answered."""
    chance = random.Random(7)
    servers = [new_server(QUICK, url=url) for url in (linked_url, linked_url, tcp_url)]
    faults = [
        link.cut,
        link.reset,
        lambda: link.silence("upstream"),
        lambda: link.silence("downstream"),
        lambda: link.close_after(100),
        lambda: link.delay(0.2),
    ]

    async def disturb():
        while True:
            chance.choice(faults)()
            await asyncio.sleep(chance.uniform(0.05, 0.4))
            link.restore()
            await asyncio.sleep(chance.uniform(0.02, 0.2))

    async def call(key):
        while True:
            store = chance.choice(servers)
            with suppress(StoreError):
                begun = await begin(store, key, 2.0)
                if isinstance(begun, Recorded):
                    return int(begun.result)
                await asyncio.sleep(chance.choice([0.0, 0.0, 0.5]))
                await count_up(store, begun, 2.0)

    async def play(trajectory_id):
        # Each call is in flight twice at once, as after a client's time-out.
        pairs = []
        for index in range(10):
            key = CallKey(trajectory_id, f"call-{index}")
            async with asyncio.TaskGroup() as group:
                twice = [group.create_task(call(key)), group.create_task(call(key))]
            pairs.append([task.result() for task in twice])
        return pairs

    async with asyncio.timeout(240):
        disturbance = asyncio.create_task(disturb())
        results = await asyncio.gather(*(play(f"trajectory-{index}") for index in range(8)))
        disturbance.cancel()
        await asyncio.wait([disturbance])
    link.restore()

    assert results == [[[index + 1, index + 1] for index in range(10)]] * 8
    assert [await number(servers[2], f"trajectory-{index}") for index in range(8)] == [10] * 8
