import asyncio

import pytest
import redis.asyncio

from turnmill.core.errors import NoTrajectoryError, StaleClaimError, StoreFullError
from turnmill.core.trajectory import TrajectoryMetadata, TrajectoryOutcome, Turn
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.embedded import EmbeddedStore
from turnmill.trajectories.journal import TrajectoryJournal
from turnmill.trajectories.keys import Keys
from turnmill.trajectories.packing import pack
from turnmill.trajectories.settings import StoreSettings

FIRST = Turn(prompt_ids=(1, 2), response_ids=(3, 4), log_probs=(-0.1, -0.25), observation="a wall", policy_version=7)
SECOND = Turn(prompt_ids=(1, 2, 3), response_ids=(5,), reward=1.0, done=True, metrics={"plan_length": 2.0})


@pytest.fixture
async def new_journal(redis_url, request):
    journals = []

    def new(settings=None):
        journals.append(TrajectoryJournal.from_url(redis_url, request.node.name, settings))
        return journals[-1]

    yield new
    for journal in journals:
        await journal.close()


def soon():
    return deadline_in(10)


async def test_a_restarted_agent_loop_continues_after_the_last_turn(new_journal):
    before = new_journal()
    trajectory = await before.open(
        "step-3/prompt-1/sample-0", metadata=TrajectoryMetadata(step=3, task=5), deadline=soon()
    )
    for turn in (FIRST, SECOND):
        trajectory = await before.append(trajectory, turn, deadline=soon())

    after = await new_journal().open("step-3/prompt-1/sample-0", deadline=soon())

    assert after.turns == trajectory.turns == (FIRST, SECOND)
    assert after.metadata == TrajectoryMetadata(step=3, task=5)
    assert after.attempt == trajectory.attempt + 1


async def test_a_trajectory_keeps_the_metadata_with_which_it_began(new_journal):
    await new_journal().open("trajectory", metadata=TrajectoryMetadata(trajectory_id="at the tools"), deadline=soon())

    after = await new_journal().open("trajectory", metadata=TrajectoryMetadata(trajectory_id="new"), deadline=soon())

    assert after.metadata.trajectory_id == "at the tools"


async def test_trajectories_with_a_turn_of_a_newer_policy_are_deleted(new_journal):
    journal = new_journal()
    for name, turns in {
        "newer": (FIRST,),
        "none": (),
        "as old": (SECOND,),
        "newer at its end": (SECOND, FIRST),
    }.items():
        trajectory = await journal.open(name, deadline=soon())
        for turn in turns:
            trajectory = await journal.append(trajectory, turn, deadline=soon())

    assert await journal.delete_newer(FIRST.policy_version, deadline=soon()) == 0
    assert await journal.delete_newer(SECOND.policy_version, deadline=soon()) == 2

    assert await journal.names(deadline=soon()) == ["as old", "none"]


async def test_an_agent_loop_whose_trajectory_was_taken_over_can_no_longer_write(new_journal):
    journal = new_journal()
    stale = await journal.open("trajectory", deadline=soon())
    await new_journal().open("trajectory", deadline=soon())

    with pytest.raises(StaleClaimError, match="attempt 2 has it open"):
        await journal.append(stale, FIRST, deadline=soon())
    with pytest.raises(StaleClaimError):
        await journal.finish(stale, TrajectoryOutcome(), deadline=soon())

    assert (await journal.read("trajectory", deadline=soon())).turns == ()


async def test_a_turn_that_is_appended_twice_is_stored_once(new_journal):
    journal = new_journal()
    trajectory = await journal.open("trajectory", deadline=soon())

    for _ in range(2):
        await journal.append(trajectory, FIRST, deadline=soon())

    assert (await journal.read("trajectory", deadline=soon())).turns == (FIRST,)


async def test_a_different_turn_at_the_same_index_is_refused(new_journal):
    journal = new_journal()
    trajectory = await journal.open("trajectory", deadline=soon())
    await journal.append(trajectory, FIRST, deadline=soon())

    with pytest.raises(StaleClaimError, match="another turn 0"):
        await journal.append(trajectory, SECOND, deadline=soon())


async def test_live_returns_the_trajectories_in_flight(new_journal):
    journal = new_journal()
    over = await journal.open("over {1}", deadline=soon())
    await journal.finish(over, TrajectoryOutcome("completed"), deadline=soon())
    await journal.append(await journal.open("in flight *", deadline=soon()), FIRST, deadline=soon())

    live = await journal.live(deadline=soon())

    assert [(trajectory.name, trajectory.turns) for trajectory in live] == [("in flight *", (FIRST,))]
    assert await journal.names(deadline=soon()) == ["in flight *", "over {1}"]


async def test_a_finished_trajectory_keeps_its_outcome_and_takes_no_more_turns(new_journal):
    journal = new_journal()
    trajectory = await journal.open("trajectory", deadline=soon())
    await journal.finish(trajectory, TrajectoryOutcome("completed"), deadline=soon())

    with pytest.raises(StaleClaimError, match="it is finished"):
        await journal.append(trajectory, FIRST, deadline=soon())

    assert (await journal.open("trajectory", deadline=soon())).outcome == TrajectoryOutcome("completed")


async def test_a_finished_trajectory_expires(new_journal):
    journal = new_journal(StoreSettings(finished_seconds=0.05))
    trajectory = await journal.open("trajectory", deadline=soon())
    trajectory = await journal.append(trajectory, FIRST, deadline=soon())
    await journal.finish(trajectory, TrajectoryOutcome(), deadline=soon())

    async with asyncio.timeout(10):
        while await journal.names(deadline=soon()):  # noqa: ASYNC110 (it is Redis that expires them)
            await asyncio.sleep(0.01)


async def test_a_finished_trajectory_that_is_kept_does_not_expire(new_journal):
    journal = new_journal(StoreSettings(finished_seconds=0.05))
    await journal.finish(await journal.open("kept", deadline=soon()), TrajectoryOutcome(), keep=True, deadline=soon())
    await journal.finish(await journal.open("other", deadline=soon()), TrajectoryOutcome(), deadline=soon())

    async with asyncio.timeout(10):
        while "other" in await journal.names(deadline=soon()):  # noqa: ASYNC110 (it is Redis that expires them)
            await asyncio.sleep(0.01)

    assert await journal.names(deadline=soon()) == ["kept"]


async def test_a_deleted_trajectory_can_neither_be_read_nor_appended_to(new_journal):
    journal = new_journal()
    trajectory = await journal.open("trajectory", deadline=soon())

    await journal.delete("trajectory", deadline=soon())

    assert await journal.read("trajectory", deadline=soon()) is None
    with pytest.raises(NoTrajectoryError, match="has expired, or is deleted or lost"):
        await journal.append(trajectory, FIRST, deadline=soon())


async def test_a_trajectory_that_grows_too_large_is_refused(new_journal):
    journal = new_journal(StoreSettings(max_trajectory_bytes=500))
    trajectory = await journal.open("trajectory", deadline=soon())

    with pytest.raises(StoreFullError, match="max_trajectory_bytes is 500"):
        await journal.append(trajectory, Turn(prompt_ids=tuple(range(200)), response_ids=(1,)), deadline=soon())

    assert (await journal.read("trajectory", deadline=soon())).turns == ()


@pytest.fixture
def lose(redis_url, request):
    """Take back what a store that was cut off from power had acknowledged: turns, or the newest attempt."""
    key = Keys(request.node.name).journal("trajectory")

    async def lose(*, turns=0, attempt=None):
        async with redis.asyncio.Redis.from_url(redis_url) as client:
            for _ in range(turns):
                await client.rpop(f"{key}:turns")
            if attempt is not None:
                await client.hset(key, mapping={"attempt": attempt, "opener": "earlier"})

    return lose


THIRD = Turn(prompt_ids=(1, 2, 3, 4), response_ids=(6,))


@pytest.mark.parametrize("lost", [1, 2])
async def test_turns_that_the_store_lost_are_stored_again_with_the_next(new_journal, lose, lost):
    journal = new_journal()
    trajectory = await journal.open("trajectory", deadline=soon())
    for turn in (FIRST, SECOND):
        trajectory = await journal.append(trajectory, turn, deadline=soon())
    await lose(turns=lost)

    trajectory = await journal.append(trajectory, THIRD, deadline=soon())

    stored = await journal.read("trajectory", deadline=soon())
    assert stored.turns == trajectory.turns == (FIRST, SECOND, THIRD)


@pytest.mark.parametrize("lost", [0, 1])
async def test_turns_that_could_not_be_sent_go_with_the_next(new_journal, lose, lost):
    journal = new_journal()
    trajectory = await journal.append(await journal.open("trajectory", deadline=soon()), FIRST, deadline=soon())
    await lose(turns=lost)

    trajectory = await journal.append(trajectory.with_unsent(SECOND), THIRD, deadline=soon())

    stored = await journal.read("trajectory", deadline=soon())
    assert stored.turns == trajectory.turns == (FIRST, SECOND, THIRD)
    assert trajectory.unsent == 0


async def test_a_trajectory_ends_with_the_turns_that_could_not_be_sent(new_journal):
    journal = new_journal()
    trajectory = await journal.open("trajectory", deadline=soon())

    await journal.finish(
        trajectory.with_unsent(FIRST).with_unsent(SECOND), TrajectoryOutcome("completed"), deadline=soon()
    )

    stored = await journal.read("trajectory", deadline=soon())
    assert (stored.turns, stored.outcome) == ((FIRST, SECOND), TrajectoryOutcome("completed"))


async def test_several_turns_are_stored_all_or_none(new_journal):
    size = len(pack(SECOND)) + len(pack(FIRST))
    journal = new_journal(StoreSettings(max_trajectory_bytes=size + 1))
    trajectory = await journal.append(await journal.open("trajectory", deadline=soon()), FIRST, deadline=soon())

    with pytest.raises(StoreFullError):
        await journal.append(trajectory.with_unsent(SECOND), THIRD, deadline=soon())

    assert (await journal.read("trajectory", deadline=soon())).turns == (FIRST,)


async def test_an_append_whose_answer_was_lost_can_be_repeated_with_more(new_journal):
    journal = new_journal()
    trajectory = await journal.open("trajectory", deadline=soon())
    await journal.append(trajectory, FIRST, deadline=soon())

    await journal.append(trajectory.with_unsent(FIRST), SECOND, deadline=soon())

    assert (await journal.read("trajectory", deadline=soon())).turns == (FIRST, SECOND)
    with pytest.raises(StaleClaimError, match="another turn 1"):
        await journal.append(trajectory.with_unsent(FIRST), THIRD, deadline=soon())


async def test_a_trajectory_does_not_end_without_the_turns_that_the_store_lost(new_journal, lose):
    journal = new_journal()
    trajectory = await journal.open("trajectory", deadline=soon())
    for turn in (FIRST, SECOND):
        trajectory = await journal.append(trajectory, turn, deadline=soon())
    await lose(turns=2)

    await journal.finish(trajectory, TrajectoryOutcome("completed"), deadline=soon())

    stored = await journal.read("trajectory", deadline=soon())
    assert stored.turns == (FIRST, SECOND)
    assert stored.outcome == TrajectoryOutcome("completed")


async def test_a_trajectory_does_not_end_with_turns_that_its_loop_does_not_know(new_journal):
    journal = new_journal()
    trajectory = await journal.open("trajectory", deadline=soon())
    await journal.append(trajectory, FIRST, deadline=soon())

    with pytest.raises(StaleClaimError, match="another turn 0"):
        await journal.finish(trajectory, TrajectoryOutcome("completed"), deadline=soon())


async def test_an_attempt_whose_number_is_given_again_can_no_longer_write(new_journal, lose):
    journal = new_journal()
    old = await journal.open("trajectory", deadline=soon())
    await lose(attempt=0)
    new = await new_journal().open("trajectory", deadline=soon())
    assert new.attempt == old.attempt

    with pytest.raises(StaleClaimError):
        await journal.append(old, FIRST, deadline=soon())
    with pytest.raises(StaleClaimError):
        await journal.finish(old, TrajectoryOutcome(), deadline=soon())


@pytest.fixture
async def attempt_at_run(redis_url, request):
    journals = []

    def at(number):
        journals.append(TrajectoryJournal.from_url(redis_url, request.node.name, attempt=number))
        return journals[-1]

    yield at
    for journal in journals:
        await journal.close()


async def test_a_stale_attempt_at_the_run_opens_no_trajectory(attempt_at_run):
    stale = attempt_at_run(1)
    await stale.claim_run(deadline=soon())
    await attempt_at_run(2).claim_run(deadline=soon())

    with pytest.raises(StaleClaimError, match=r"Attempt 1 at run .* is stale: attempt 2 has begun"):
        await stale.open("step-4/prompt-1/sample-0", deadline=soon())

    assert await stale.names(deadline=soon()) == []


async def test_a_stale_attempt_at_the_run_cannot_write_to_its_open_trajectories(attempt_at_run):
    stale, newest = attempt_at_run(1), attempt_at_run(2)
    await stale.claim_run(deadline=soon())
    trajectory = await stale.append(await stale.open("sample-0", deadline=soon()), FIRST, deadline=soon())
    await newest.claim_run(deadline=soon())

    with pytest.raises(StaleClaimError):
        await stale.append(trajectory, SECOND, deadline=soon())
    with pytest.raises(StaleClaimError):
        await stale.finish(trajectory, TrajectoryOutcome("completed"), deadline=soon())
    with pytest.raises(StaleClaimError):
        await stale.delete("sample-0", deadline=soon())

    resumed = await newest.open("sample-0", deadline=soon())
    assert resumed.turns == (FIRST,)
    assert not resumed.finished


async def test_a_stale_attempt_that_opens_late_takes_no_trajectory_over(attempt_at_run):
    # The older attempt does not know of the newer one, which has opened the trajectory.
    slow, newest = attempt_at_run(1), attempt_at_run(2)
    await newest.open("sample-0", deadline=soon())

    with pytest.raises(StaleClaimError):
        await slow.open("sample-0", deadline=soon())

    kept = await newest.read("sample-0", deadline=soon())
    assert kept is not None
    assert kept.attempt == 1


async def test_an_earlier_attempt_cannot_claim_the_run(attempt_at_run):
    await attempt_at_run(3).claim_run(deadline=soon())

    with pytest.raises(StaleClaimError, match="attempt 3 has begun"):
        await attempt_at_run(2).claim_run(deadline=soon())


async def test_an_attempt_may_claim_the_run_twice(attempt_at_run):
    await attempt_at_run(2).claim_run(deadline=soon())
    await attempt_at_run(2).claim_run(deadline=soon())

    assert (await attempt_at_run(2).open("sample-0", deadline=soon())).turns == ()


async def test_a_store_without_memory_refuses_turns_and_finishes_trajectories():
    with EmbeddedStore() as small:
        journal = TrajectoryJournal.from_url(small.url, "run")
        async with redis.asyncio.Redis.from_url(small.url) as client:
            trajectory = await journal.append(await journal.open("a", deadline=soon()), FIRST, deadline=soon())
            await client.config_set("maxmemory", 1)

            with pytest.raises(StoreFullError):
                await journal.append(trajectory, SECOND, deadline=deadline_in(1))
            finished = await journal.finish(trajectory, TrajectoryOutcome(), deadline=soon())
            await client.config_set("maxmemory", 0)

            assert (await journal.read("a", deadline=soon())).outcome == finished.outcome == TrajectoryOutcome()
        await journal.close()


async def test_a_trajectory_that_is_open_stays_for_its_own_time_and_a_finished_one_for_another(
    new_journal, redis_url, request
):
    journal = new_journal(StoreSettings(expiry_seconds=5000, finished_seconds=1000))
    async with redis.asyncio.Redis.from_url(redis_url) as client:

        async def seconds_left() -> int:
            return await client.ttl(Keys(request.node.name).journal("kept"))

        opened = await journal.open("kept", deadline=soon())
        assert 1000 < await seconds_left() <= 5000
        appended = await journal.append(opened, FIRST, deadline=soon())
        assert 1000 < await seconds_left() <= 5000
        await journal.finish(appended, TrajectoryOutcome(), deadline=soon())
        assert 0 < await seconds_left() <= 1000
