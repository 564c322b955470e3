import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest
import redis.asyncio
from redis.crc import key_slot

from turnmill.core.errors import (
    CallInProgressError,
    CallMismatchError,
    LostWriteError,
    PoisonCallError,
    SettingsError,
    StaleClaimError,
    StoreFullError,
)
from turnmill.trajectories import one_by_one, scripts
from turnmill.trajectories import store as store_module
from turnmill.trajectories.base import CallKey, Change, Claim, Recorded
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.embedded import EmbeddedStore
from turnmill.trajectories.settings import StoreSettings
from turnmill.trajectories.store import TrajectoryStore

SHELL, SEARCH = "bash_terminal", "google_search"
FIRST = CallKey("trajectory-1", "call-1")
SECOND = CallKey("trajectory-1", "call-2")
WITHOUT_ID = CallKey("trajectory-1", None)
SHORT_LEASE = StoreSettings(lease_seconds=0.05)


async def claim(store: TrajectoryStore, key: CallKey = FIRST, tool: str = SHELL, *, stateful: bool = True) -> Claim:
    begun = await store.begin(key, tool, stateful=stateful, deadline=deadline_in(10))
    assert isinstance(begun, Claim)
    return begun


async def commit(store: TrajectoryStore, held: Claim, result: bytes = b"done", change: Change | None = None) -> None:
    await store.commit(held, result, change, deadline=deadline_in(10))


async def write(store: TrajectoryStore, key: CallKey, **parts: bytes) -> None:
    await commit(store, await claim(store, key), change=Change(written=parts))


async def state(store: TrajectoryStore, tool: str = SHELL) -> dict[str, bytes]:
    held = await claim(store, WITHOUT_ID, tool)
    await store.release(held, deadline=deadline_in(10))
    return dict(held.state)


async def die(store: TrajectoryStore) -> None:
    """End a server as a kill does: its claims remain."""
    await store.close()


async def test_a_repeated_call_gets_the_recorded_result_on_any_server(new_server):
    first, second = new_server(), new_server()
    await commit(first, await claim(first), b"one\0two")

    for store in (first, second):
        assert await store.begin(FIRST, SHELL, deadline=deadline_in(10)) == Recorded(b"one\0two")


async def test_a_repeat_with_another_action_is_refused(new_server):
    store = new_server()
    await commit(store, await claim(store, replace(FIRST, digest="aa")), b"done")

    with pytest.raises(CallMismatchError, match="another action"):
        await store.begin(replace(FIRST, digest="bb"), SHELL, deadline=deadline_in(10))
    for digest in ("aa", ""):
        repeated = await new_server().begin(replace(FIRST, digest=digest), SHELL, deadline=deadline_in(10))
        assert repeated == Recorded(b"done")


async def test_records_of_0_1_without_a_digest_are_read(new_server):
    store = new_server()
    await commit(store, await claim(store), b"done")

    assert await store.begin(replace(FIRST, digest="bb"), SHELL, deadline=deadline_in(10)) == Recorded(b"done")


async def test_state_written_by_one_server_is_read_by_another(new_server):
    first, second = new_server(), new_server()
    await write(first, FIRST, folder=b"/tmp", variables=b"\0\xff")

    assert await state(second) == {"folder": b"/tmp", "variables": b"\0\xff"}


async def test_state_that_leaves_the_cache_while_a_call_begins_is_kept(new_server):
    server = new_server()
    await write(server, FIRST, log=b"one")

    beginning = asyncio.create_task(claim(server, SECOND))
    # The request, with the cached version, is on its way.
    await asyncio.sleep(0)
    server._cache.forget(FIRST.trajectory_id)

    assert (await beginning).state == {"log": b"one"}


async def test_a_change_touches_only_the_parts_that_it_names(new_server):
    store = new_server()
    await write(store, FIRST, kept=b"1", changed=b"2", dropped=b"3")

    change = Change(written={"changed": b"22", "new": b"4"}, removed=("dropped", "never there"))
    await commit(store, await claim(store, SECOND), change=change)

    expected = {"kept": b"1", "changed": b"22", "new": b"4"}
    assert await state(store) == expected
    assert await state(new_server()) == expected


async def test_a_change_that_forgets_keeps_only_what_it_writes(new_server):
    store = new_server()
    await write(store, FIRST, old=b"1")

    await commit(store, await claim(store, SECOND), change=Change(written={"new": b"2"}, forget=True))

    assert await state(store) == await state(new_server()) == {"new": b"2"}


@pytest.mark.parametrize("other_server", [False, True])
async def test_state_that_the_store_has_lost_is_noticed(new_server, redis_url, other_server):
    store = new_server()
    await write(store, FIRST, part=b"1")
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        assert await client.delete(f"{store._keys.trajectory(FIRST.trajectory_id)}:state:{SHELL}") == 1

    with pytest.raises(LostWriteError, match="no longer has the state"):
        await claim(new_server() if other_server else store, SECOND)


async def test_a_tool_that_has_forgotten_all_of_its_state_goes_on(new_server):
    store = new_server()
    await write(store, FIRST, part=b"1")
    await commit(store, await claim(store, SECOND), change=Change(forget=True))

    assert await state(store) == await state(new_server()) == {}


async def test_every_tool_and_every_trajectory_has_its_own_state(new_server):
    store = new_server()
    await write(store, FIRST, part=b"1")

    assert await state(store, "sql") == {}
    other = await claim(store, CallKey("trajectory-2", None))
    assert other.state == {}


async def test_names_with_special_characters_are_stored_unchanged(new_server):
    store = new_server()
    key = CallKey("tra}je{ct*ory\n \ud800", "call \n\ud800")
    change = Change(written={"ä\udcff\ud800 \n": b"1"})

    await commit(store, await claim(store, key), b"r", change)

    assert await store.begin(key, SHELL, deadline=deadline_in(10)) == Recorded(b"r")
    assert (await claim(new_server(), replace(key, call_id=None))).state == change.written


async def test_a_repeated_call_waits_for_the_server_that_claimed_it(new_server):
    first, second = new_server(), new_server()
    held = await claim(first)
    repeated = asyncio.create_task(second.begin(FIRST, SHELL, deadline=deadline_in(10)))

    await commit(first, held, b"of the first")

    assert await repeated == Recorded(b"of the first")


@pytest.mark.parametrize("key", [SECOND, WITHOUT_ID])
async def test_calls_of_a_stateful_tool_are_serialized(new_server, key):
    first, second = new_server(), new_server()
    held = await claim(first)
    following = asyncio.create_task(claim(second, key))

    await commit(first, held, change=Change(written={"part": b"1"}))

    assert (await following).state == {"part": b"1"}


async def test_a_waiting_call_fails_at_its_deadline(new_server):
    first, second = new_server(), new_server()
    await claim(first)

    with pytest.raises(CallInProgressError, match="send it again later"):
        await second.begin(SECOND, SHELL, deadline=deadline_in(2))


async def test_calls_of_a_tool_without_state_run_concurrently(new_server):
    store = new_server()

    held = [await claim(store, CallKey("trajectory-1", f"call-{index}"), "search", stateful=False) for index in "ab"]

    for each in held:
        await commit(store, each, each.key.call_id.encode())
    repeated = await store.begin(held[1].key, "search", stateful=False, deadline=deadline_in(10))
    assert repeated == Recorded(b"call-b")


async def test_a_call_without_id_of_a_tool_without_state_needs_no_store():
    store = TrajectoryStore.from_url("redis://127.0.0.1:1", "run")

    held = await store.begin(WITHOUT_ID, "search", stateful=False, deadline=deadline_in(10))
    await commit(store, held)
    await store.release(held, deadline=deadline_in(10))


async def test_the_call_of_a_dead_server_is_taken_over(new_server):
    first, second = new_server(SHORT_LEASE), new_server(SHORT_LEASE)
    lost = await claim(first)
    await die(first)

    taken = await claim(second)
    await commit(second, taken, b"of the second")

    assert taken.token > lost.token
    assert second.num_taken_over == 1


@pytest.mark.parametrize("key", [FIRST, WITHOUT_ID])
async def test_a_fenced_server_can_no_longer_write(new_server, key):
    first, second = new_server(SHORT_LEASE), new_server(SHORT_LEASE)
    late = await claim(first, key)
    await die(first)
    await commit(second, await claim(second, key), b"of the second", Change(written={"part": b"second"}))

    revived = new_server()
    with pytest.raises(StaleClaimError):
        await commit(revived, late, b"of the first", Change(written={"part": b"first"}))

    assert await state(second) == {"part": b"second"}


async def set_until(redis_url: str, store: TrajectoryStore, until_us: int) -> None:
    """Make a claim look as if Redis's clock had been set since it was given."""
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        key, field = store._keys.trajectory(FIRST.trajectory_id), f"lock {SHELL}"
        token, _, rest = (await client.hget(key, field)).split(b" ", 2)
        await client.hset(key, field, b"%s %d %s" % (token, until_us, rest))


async def test_a_claim_with_an_end_far_ahead_is_taken_over(new_server, redis_url):
    first, second = new_server(SHORT_LEASE), new_server(SHORT_LEASE)
    held = await claim(first)
    await die(first)
    await set_until(redis_url, second, held.token + 3_600_000_000)

    assert (await claim(second)).token > held.token


async def test_a_claim_that_lives_is_not_taken_over_after_a_step_of_the_clock(new_server, redis_url):
    first, second = new_server(StoreSettings(lease_seconds=1e3)), new_server(StoreSettings(lease_seconds=1e3))
    held = await claim(first)
    await set_until(redis_url, first, held.token - 3_600_000_000)

    with pytest.raises(CallInProgressError):
        await second.begin(FIRST, SHELL, deadline=deadline_in(1))
    await commit(first, held, b"of the first")
    assert await second.begin(FIRST, SHELL, deadline=deadline_in(10)) == Recorded(b"of the first")


async def test_a_renewal_after_the_clock_was_set_back_ends_one_lease_later(new_server, redis_url):
    first = new_server(StoreSettings(lease_seconds=1e3))
    held = await claim(first)
    await set_until(redis_url, first, held.token + 10**13)

    await first.renew(held, deadline=deadline_in(10))

    assert await lease_end(redis_url, first) < held.token / 1e6 + 2e3


@pytest.mark.parametrize(("key", "stateful"), [(FIRST, True), (FIRST, False), (WITHOUT_ID, True)])
async def test_a_call_that_three_servers_died_of_is_given_to_no_fourth(new_server, key, stateful):
    for _ in range(3):
        dying = new_server(SHORT_LEASE)
        await claim(dying, key, stateful=stateful)
        await die(dying)
    survivor = new_server(SHORT_LEASE)

    for _ in range(2):
        with pytest.raises(PoisonCallError, match="3 servers when they died"):
            await survivor.begin(key, SHELL, stateful=stateful, deadline=deadline_in(10))
    await survivor.finish(key.trajectory_id, deadline=deadline_in(10))


async def test_of_calls_that_two_servers_died_of_one_alone_is_in_progress_at_the_death_of_the_third(new_server):
    keys = [CallKey(f"t{number}", "1") for number in range(3)]
    for _ in range(2):
        dying = new_server(SHORT_LEASE)
        await asyncio.gather(*(claim(dying, key) for key in keys))
        await die(dying)
    third, fourth = new_server(SHORT_LEASE), new_server(SHORT_LEASE)
    waiting = [asyncio.create_task(claim(third, key)) for key in keys]
    done, pending = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert (len(done), len(pending)) == (1, 2)
    # Others are not held up.
    await third.commit(await claim(third, CallKey("t3", "1")), b"done", deadline=deadline_in(10))
    await asyncio.sleep(0.2)
    assert not any(task.done() for task in pending)
    for task in pending:
        task.cancel()
    await die(third)

    guilty = done.pop().result().key
    with pytest.raises(PoisonCallError, match="3 servers when they died"):
        await claim(fourth, guilty)
    for key in keys:
        if key != guilty:
            await fourth.commit(await claim(fourth, key), b"done", deadline=deadline_in(10))


@pytest.mark.parametrize("end", ["commit", "release", "refused"])
async def test_the_next_call_that_two_servers_died_of_begins_once_one_has_ended(new_server, end):
    keys = [CallKey("t0", "1"), CallKey("t1", "1")]
    for _ in range(2):
        dying = new_server(SHORT_LEASE)
        await asyncio.gather(*(claim(dying, key) for key in keys))
        await die(dying)
    server = new_server(SHORT_LEASE)
    first = await claim(server, keys[0])

    match end:
        case "commit":
            await server.commit(first, b"done", deadline=deadline_in(10))
        case "release":
            await server.release(first, deadline=deadline_in(10))
        case "refused":
            await new_server(SHORT_LEASE).finish("t0", deadline=deadline_in(10))
            with pytest.raises(StaleClaimError):
                await server.commit(first, b"done", deadline=deadline_in(10))

    await server.commit(await claim(server, keys[1]), b"done", deadline=deadline_in(10))


async def test_a_call_that_two_servers_died_of_waits_no_longer_than_others_may_take(new_server, monkeypatch):
    monkeypatch.setattr(one_by_one.OneByOne.__init__, "__defaults__", (0.1,))
    keys = [CallKey(f"t{number}", "1") for number in range(3)]
    for _ in range(2):
        dying = new_server(SHORT_LEASE)
        await asyncio.gather(*(claim(dying, key) for key in keys))
        await die(dying)

    third = new_server(SHORT_LEASE)
    claims = await asyncio.gather(*(claim(third, key) for key in keys))

    assert len({held.token for held in claims}) == 3


async def test_a_call_may_follow_on_one_that_servers_died_of(new_server):
    for key in (FIRST, FIRST, FIRST, SECOND, FIRST):
        dying = new_server(SHORT_LEASE)
        await claim(dying, key)
        await die(dying)

    assert (await claim(new_server(SHORT_LEASE), SECOND)).token


async def test_released_and_renewed_claims_are_not_counted_as_deaths(new_server):
    for _ in range(4):
        store = new_server(SHORT_LEASE)
        await store.release(await claim(store), deadline=deadline_in(10))

    assert (await claim(new_server())).token


async def test_a_fenced_server_cannot_release_or_renew_the_claim_of_the_other(new_server):
    first, second = new_server(SHORT_LEASE), new_server()
    late = await claim(first)
    await die(first)
    taken = await claim(second)

    revived = new_server()
    await revived.release(late, deadline=deadline_in(10))
    with pytest.raises(StaleClaimError):
        await revived.renew(late, deadline=deadline_in(10))

    await commit(second, taken)


async def test_the_claims_of_a_living_server_are_renewed_beyond_their_lease(new_server, redis_url):
    lease = StoreSettings(lease_seconds=1.0)
    first, second = new_server(lease), new_server(lease)
    held = await claim(first)
    repeated = asyncio.create_task(second.begin(FIRST, SHELL, deadline=deadline_in(60)))
    async with asyncio.timeout(30):
        while await lease_end(redis_url, first) < held.token / 1e6 + 2:  # noqa: ASYNC110 (only Redis has this time)
            await asyncio.sleep(0.05)

    await commit(first, held, b"of the first")

    assert await repeated == Recorded(b"of the first")


async def test_a_claim_is_renewed_for_a_limited_time(new_server):
    first = new_server(replace(SHORT_LEASE, max_call_seconds=0.1))
    held = await claim(first)

    taken = await claim(new_server())

    assert taken.token > held.token


@pytest.mark.parametrize("key", [FIRST, WITHOUT_ID])
async def test_a_released_call_has_no_effect_and_can_be_repeated(new_server, key):
    first, second = new_server(), new_server()
    await first.release(await claim(first, key), deadline=deadline_in(10))

    assert (await claim(second, key)).state == {}


@pytest.mark.parametrize("key", [FIRST, WITHOUT_ID])
async def test_a_repeated_commit_has_no_further_effect(new_server, key):
    store = new_server()
    held = await claim(store, key)
    await commit(store, held, b"done", Change(written={"part": b"1"}))
    await commit(store, await claim(store, SECOND), b"next", Change(written={"part": b"2"}))

    await commit(store, held, b"done", Change(written={"part": b"1"}))

    assert await state(store) == {"part": b"2"}


async def test_a_commit_under_a_released_claim_is_refused_after_another_commit(new_server):
    store = new_server()
    released = await claim(store)
    await store.release(released, deadline=deadline_in(10))
    await commit(store, await claim(store), b"second")

    with pytest.raises(StaleClaimError):
        await commit(store, released, b"first")


async def test_finishing_forgets_the_state_of_every_tool(new_server):
    store = new_server()
    await write(store, FIRST, part=b"1")
    await commit(store, await claim(store, SECOND, "sql"), change=Change(written={"database": b"1"}))

    await store.finish("trajectory-1", deadline=deadline_in(10))

    for server in (store, new_server()):
        assert await state(server) == {}
        assert await state(server, "sql") == {}


async def test_a_finished_trajectory_keeps_the_records_of_its_calls(new_server):
    store = new_server()
    await write(store, FIRST, part=b"1")

    await store.finish("trajectory-1", deadline=deadline_in(10))

    assert await store.begin(FIRST, SHELL, deadline=deadline_in(10)) == Recorded(b"done")


async def test_finishing_keeps_a_record_though_another_tool_has_claimed_the_same_call(new_server):
    store = new_server()
    await claim(store)
    await commit(store, await claim(store, FIRST, "sql"))

    await store.finish("trajectory-1", deadline=deadline_in(10))

    assert await store.begin(FIRST, SHELL, deadline=deadline_in(10)) == Recorded(b"done")


async def test_a_call_that_two_tools_have_claimed_takes_effect_once(new_server):
    store = new_server()
    late = await claim(store)
    await commit(store, await claim(store, FIRST, "sql"))

    with pytest.raises(StaleClaimError):
        await commit(store, late, b"done again", Change(written={"part": b"1"}))

    assert await store.begin(FIRST, SHELL, deadline=deadline_in(10)) == Recorded(b"done")
    assert await state(store) == {}


@pytest.mark.parametrize("stateful", [True, False])
async def test_a_call_in_progress_when_its_trajectory_finishes_never_takes_effect(new_server, stateful):
    store = new_server()
    held = await claim(store, stateful=stateful)

    await store.finish("trajectory-1", deadline=deadline_in(10))

    with pytest.raises(StaleClaimError):
        await commit(store, held)
    with pytest.raises(StaleClaimError, match="another call_id"):
        await store.begin(FIRST, SHELL, stateful=stateful, deadline=deadline_in(10))
    assert await state(store) == {}


async def test_a_call_can_finish_its_trajectory(new_server):
    store = new_server()
    await write(store, FIRST, part=b"1")

    await store.commit(await claim(store, SECOND, "finish"), b"over", finishes=True, deadline=deadline_in(10))

    assert await state(store) == {}
    assert await store.begin(SECOND, "finish", deadline=deadline_in(10)) == Recorded(b"over")


async def test_finishing_an_unknown_trajectory_stores_nothing(new_server, redis_url):
    store = new_server()

    await store.finish("unknown", deadline=deadline_in(10))

    assert await store.count(deadline=deadline_in(10)) == 0


async def test_a_deleted_trajectory_leaves_neither_data_nor_valid_claims(new_server):
    store = new_server()
    late = await claim(store, SECOND, "sql")
    await write(store, FIRST, part=b"1")

    await store.delete("trajectory-1", deadline=deadline_in(10))

    assert await store.count(deadline=deadline_in(10)) == 0
    anew = await claim(store)
    assert anew.state == {}
    assert anew.token != late.token
    with pytest.raises(StaleClaimError):
        await commit(store, late)


async def test_count_returns_the_number_of_trajectories_of_the_run(new_server, redis_url):
    store = new_server()
    for index in range(3):
        await write(store, CallKey(f"trajectory-{index}", "call"), part=b"1")
    other_run = TrajectoryStore.from_url(redis_url, "another run")
    await commit(other_run, await claim(other_run))

    assert await store.count(deadline=deadline_in(10)) == 3

    await other_run.delete("trajectory-1", deadline=deadline_in(10))
    await other_run.close()


async def test_every_key_of_a_trajectory_expires(new_server, redis_url):
    store = new_server(StoreSettings(expiry_seconds=0.2))
    await write(store, FIRST, part=b"1")
    await commit(store, await claim(store, SECOND, "sql"), change=Change(written={"database": b"1"}))

    async with asyncio.timeout(10):
        while await keys(redis_url, store):  # noqa: ASYNC110 (it is Redis that expires them)
            await asyncio.sleep(0.01)


async def test_all_keys_of_a_trajectory_expire_in_the_same_moment(new_server, redis_url):
    store = new_server()
    await write(store, FIRST, part=b"1")
    await commit(store, await claim(store, SECOND, "sql"), change=Change(written={"database": b"1"}))

    async with redis.asyncio.Redis.from_url(redis_url) as client:
        expiries = {await client.pexpiretime(key) for key in await keys(redis_url, store)}

    assert len(expiries) == 1
    assert expiries.pop() > 0


async def test_a_commit_beyond_the_size_limit_changes_nothing(new_server):
    store = new_server(StoreSettings(max_trajectory_bytes=1000))
    await write(store, FIRST, part=b"1")
    held = await claim(store, SECOND)

    with pytest.raises(StoreFullError, match="max_trajectory_bytes is 1000"):
        await commit(store, held, b"result", Change(written={"part": b"2", "large": bytes(1000)}))

    await store.release(held, deadline=deadline_in(10))
    assert await state(store) == {"part": b"1"}
    assert isinstance(await store.begin(SECOND, SHELL, deadline=deadline_in(10)), Claim)


async def test_removed_and_forgotten_parts_free_their_bytes(new_server):
    store = new_server(StoreSettings(max_trajectory_bytes=1000, cache_bytes=0))
    changes = [
        Change(written={"a": bytes(600)}),
        Change(written={"a": bytes(700)}),
        Change(written={"b": bytes(700)}, removed=("a",)),
        Change(written={"c": bytes(700)}, forget=True),
        Change(removed=("c",)),
        Change(written={"d": bytes(700)}),
    ]

    for change in changes:
        await commit(store, await claim(store, WITHOUT_ID), change=change)
    await store.finish("trajectory-1", deadline=deadline_in(10))
    await write(store, FIRST, e=bytes(700))

    assert await state(store) == {"e": bytes(700)}


async def test_a_store_without_memory_refuses_calls_but_releases_and_finishes(new_server):
    with EmbeddedStore(max_bytes=4 * 1024**2) as small:
        store = new_server(url=small.url)
        await write(store, FIRST, part=b"1")
        held = await claim(store, SECOND)
        async with redis.asyncio.Redis.from_url(small.url) as client:
            await client.config_set("maxmemory", 1)

            with pytest.raises(StoreFullError, match="memory limit"):
                await commit(store, held, b"result", Change(written={"part": b"2"}))
            assert await store.begin(FIRST, SHELL, deadline=deadline_in(10)) == Recorded(b"done")
            await store.release(held, deadline=deadline_in(10))
            with pytest.raises(StoreFullError):
                await store.begin(SECOND, SHELL, deadline=deadline_in(10))
            await store.finish("trajectory-1", deadline=deadline_in(10))

            await client.config_set("maxmemory", 0)
        assert await state(store) == {}


async def test_a_call_that_finishes_is_never_refused_for_lack_of_memory(new_server):
    with EmbeddedStore() as small:
        store = new_server(url=small.url)
        held = await claim(store, FIRST, "finish")
        async with redis.asyncio.Redis.from_url(small.url) as client:
            await client.config_set("maxmemory", 1)

            await store.commit(held, b"over", finishes=True, deadline=deadline_in(10))

        assert await store.begin(FIRST, "finish", deadline=deadline_in(10)) == Recorded(b"over")


async def test_scripts_that_the_store_has_lost_are_sent_again(new_server, redis_url):
    store = new_server()
    held = await claim(store)

    async with redis.asyncio.Redis.from_url(redis_url) as client:
        await client.script_flush()

    await commit(store, held)


async def test_all_keys_of_a_trajectory_are_in_one_slot_of_a_cluster(new_server, redis_url):
    store = new_server()
    await write(store, CallKey("tra}jec{tory", "call"), part=b"1")

    slots = {key_slot(key) for key in await keys(redis_url, store)}

    assert len(slots) == 1


@pytest.mark.parametrize("url", ["http://localhost", "localhost:6379"])
def test_an_invalid_store_url_is_refused(url):
    with pytest.raises(SettingsError, match="redis://HOST:PORT/0"):
        TrajectoryStore.from_url(url, "run")


async def lease_end(url: str, store: TrajectoryStore) -> float:
    """Return when the lease of the claim on the shell ends, by Redis's clock; a token is at most a second later."""
    async with redis.asyncio.Redis.from_url(url) as client:
        value = await client.hget(store._keys.trajectory(FIRST.trajectory_id), f"lock {SHELL}")
        return int(value.split()[1]) / 1e6


async def keys(url: str, store: TrajectoryStore) -> list[bytes]:
    """All keys of the store's run."""
    async with redis.asyncio.Redis.from_url(url) as client:
        return [key async for key in client.scan_iter(store._keys.everything)]


async def version(store: TrajectoryStore, key: CallKey) -> str:
    """Execute a call, and return the version that it makes."""
    held = await claim(store, key)
    await commit(store, held, change=Change(written={"last": (key.call_id or "").encode()}))
    return held.version_after


async def test_a_repeat_of_a_call_has_the_version_of_its_execution(new_server):
    made = await version(new_server(), FIRST)

    recorded = await new_server().begin(replace(FIRST, after=made), SHELL, deadline=deadline_in(10))

    assert isinstance(recorded, Recorded)
    assert recorded.version == made


async def test_a_call_after_a_version_that_the_store_has_is_executed(new_server):
    first = await version(new_server(), FIRST)
    second = await version(new_server(), replace(SECOND, after=first))

    # Of an agent loop that resumes from an earlier turn.
    for after in (first, second):
        held = await claim(new_server(), CallKey(FIRST.trajectory_id, f"after {after}", after=after))
        assert held.state == {"last": b"call-2"}
        await commit(new_server(), held)


async def test_a_call_after_a_version_of_a_call_without_id_is_executed(new_server):
    held = await claim(new_server(), WITHOUT_ID)

    assert held.version_after == ""
    await commit(new_server(), held)
    assert await version(new_server(), replace(SECOND, after=held.version_after))


async def test_a_call_of_a_tool_without_state_has_no_version_that_the_store_could_lose(new_server):
    held = await claim(new_server(), FIRST, SEARCH, stateful=False)
    await commit(new_server(), held)

    assert held.token
    assert held.version_after == ""
    repeated = await new_server().begin(FIRST, SEARCH, stateful=False, deadline=deadline_in(10))
    assert repeated == Recorded(b"done")
    assert repeated.version == ""


async def test_state_from_before_a_version_is_refused(new_server, redis_url):
    first = await version(new_server(), FIRST)
    await new_server().finish(FIRST.trajectory_id, deadline=deadline_in(10))
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as client:
        for name in await client.keys(f"*{FIRST.trajectory_id}*"):
            await client.unlink(name)

    with pytest.raises(LostWriteError, match="no longer has version"):
        await claim(new_server(), replace(SECOND, after=first))
    # Executed again, it may have had another effect.
    again = await version(new_server(), FIRST)
    with pytest.raises(LostWriteError):
        await claim(new_server(), replace(SECOND, after=first))
    assert await claim(new_server(), replace(SECOND, after=again))


async def test_a_token_never_comes_again_where_writes_were_lost_and_the_clock_set_back(new_server, redis_url):
    server = new_server()
    await write(server, FIRST, log=b"one")
    async with redis.asyncio.Redis.from_url(redis_url, protocol=2) as client:
        # Tokens of the next hour go on from the stored one.
        trajectory = server._keys.trajectory(FIRST.trajectory_id)
        await client.hset(trajectory, "token", round((time.time() + 3600) * 1e6))
        kept = {name: await client.dump(name) for name in await keys(redis_url, server)}
        held = await claim(server, SECOND)
        await commit(server, held, change=Change(written={"log": b"lost"}))
        for name in await keys(redis_url, server):
            await client.delete(name)
        for name, value in kept.items():
            await client.restore(name, 0, value)

    await write(new_server(), SECOND, log=b"again")

    with pytest.raises(LostWriteError):
        await claim(server, CallKey(FIRST.trajectory_id, "call-3", after=held.version_after))
    assert await state(server) == {"log": b"again"}


async def test_writes_that_a_power_cut_undid_are_noticed(new_server, tmp_path: Path):
    """With `appendfsync everysec`, a machine that loses power loses up to a second of the file."""
    with EmbeddedStore(keep_in=tmp_path) as kept:
        server = new_server(url=kept.url)
        first = await version(server, FIRST)
        async with redis.asyncio.Redis.from_url(kept.url, protocol=2) as client:
            # Redis answers before it writes to the file if the disk is busy.
            await client.set("later", "")
            assert await client.execute_command("WAITAOF", 1, 0, 10_000) == [1, 0]
        (file,) = await asyncio.to_thread(lambda: list(tmp_path.rglob("*.incr.aof")))
        on_disk = file.stat().st_size
        second = await version(server, replace(SECOND, after=first))
        await server.close()
    assert file.stat().st_size > on_disk
    with file.open("r+b") as content:
        content.truncate(on_disk)

    with EmbeddedStore(keep_in=tmp_path) as kept:
        server = new_server(url=kept.url)
        with pytest.raises(LostWriteError):
            await claim(server, CallKey(FIRST.trajectory_id, "call-3", after=second))
        # A trajectory that has not seen the lost call loses nothing.
        assert (await claim(server, replace(SECOND, after=first))).state == {"last": b"call-1"}
        await server.close()


async def test_two_primaries_that_claim_in_the_same_microsecond_give_different_tokens(new_server, monkeypatch):
    still = store_module.BEGIN.source.replace("redis.call('TIME')", "{'1700000000', '7'}")
    assert still != store_module.BEGIN.source
    monkeypatch.setattr(store_module, "BEGIN", scripts.of(still))

    # Two trajectories that one store does not know are as one that two stores do not know.
    tokens = {(await claim(new_server(), CallKey(name, "call"))).token for name in "ab"}

    assert len(tokens) == 2
