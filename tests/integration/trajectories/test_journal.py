import asyncio

import pytest

from turnmill.core.errors import StaleClaimError, StoreFullError
from turnmill.core.trajectory import Turn
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.journal import RolloutJournal
from turnmill.trajectories.settings import StoreSettings

FIRST = Turn(prompt_ids=(1, 2), response_ids=(3, 4), log_probs=(-0.1, -0.25), observation="a wall", policy_version=7)
SECOND = Turn(prompt_ids=(1, 2, 3), response_ids=(5,), reward=1.0, done=True, metrics={"plan_length": 2.0})


@pytest.fixture
async def new_journal(redis_url, request):
    journals = []

    def new(settings=None):
        journals.append(RolloutJournal.from_url(redis_url, request.node.name, settings))
        return journals[-1]

    yield new
    for journal in journals:
        await journal.close()


def soon():
    return deadline_in(10)


async def test_a_restarted_agent_loop_carries_on_after_the_last_turn(new_journal):
    before = new_journal()
    rollout = await before.open("step-3/prompt-1/sample-0", about={"task": "goto", "seed": 5}, deadline=soon())
    for turn in (FIRST, SECOND):
        rollout = await before.append(rollout, turn, deadline=soon())

    after = await new_journal().open("step-3/prompt-1/sample-0", deadline=soon())

    assert after.turns == rollout.turns == (FIRST, SECOND)
    assert after.about == {"task": "goto", "seed": 5}
    assert after.attempt == rollout.attempt + 1


async def test_an_agent_loop_whose_rollout_was_taken_over_can_no_longer_write(new_journal):
    journal = new_journal()
    stale = await journal.open("rollout", deadline=soon())
    await new_journal().open("rollout", deadline=soon())

    with pytest.raises(StaleClaimError, match="attempt 2 has it open"):
        await journal.append(stale, FIRST, deadline=soon())
    with pytest.raises(StaleClaimError):
        await journal.finish(stale, {}, deadline=soon())

    assert (await journal.read("rollout", deadline=soon())).turns == ()


async def test_a_turn_may_be_appended_twice_and_is_there_once(new_journal):
    journal = new_journal()
    rollout = await journal.open("rollout", deadline=soon())

    for _ in range(2):
        await journal.append(rollout, FIRST, deadline=soon())

    assert (await journal.read("rollout", deadline=soon())).turns == (FIRST,)


async def test_another_turn_in_the_same_place_is_refused(new_journal):
    journal = new_journal()
    rollout = await journal.open("rollout", deadline=soon())
    await journal.append(rollout, FIRST, deadline=soon())

    with pytest.raises(StaleClaimError, match="another turn 0"):
        await journal.append(rollout, SECOND, deadline=soon())


async def test_live_rollouts_are_those_in_flight(new_journal):
    journal = new_journal()
    over = await journal.open("over {1}", deadline=soon())
    await journal.finish(over, {"stop_reason": "completed"}, deadline=soon())
    await journal.append(await journal.open("in flight *", deadline=soon()), FIRST, deadline=soon())

    live = await journal.live(deadline=soon())

    assert [(rollout.name, rollout.turns) for rollout in live] == [("in flight *", (FIRST,))]
    assert await journal.names(deadline=soon()) == ["in flight *", "over {1}"]


async def test_a_finished_rollout_keeps_its_outcome_and_takes_no_more_turns(new_journal):
    journal = new_journal()
    rollout = await journal.open("rollout", deadline=soon())
    await journal.finish(rollout, {"stop_reason": "completed"}, deadline=soon())

    with pytest.raises(StaleClaimError, match="it is finished"):
        await journal.append(rollout, FIRST, deadline=soon())

    assert (await journal.open("rollout", deadline=soon())).outcome == {"stop_reason": "completed"}


async def test_a_finished_rollout_expires(new_journal):
    journal = new_journal(StoreSettings(finished_seconds=0.05))
    rollout = await journal.open("rollout", deadline=soon())
    rollout = await journal.append(rollout, FIRST, deadline=soon())
    await journal.finish(rollout, {}, deadline=soon())

    async with asyncio.timeout(10):
        while await journal.names(deadline=soon()):  # noqa: ASYNC110 (it is Redis that expires them)
            await asyncio.sleep(0.01)


async def test_a_rollout_that_was_forgotten_is_no_longer_there(new_journal):
    journal = new_journal()
    rollout = await journal.open("rollout", deadline=soon())

    await journal.forget("rollout", deadline=soon())

    assert await journal.read("rollout", deadline=soon()) is None
    with pytest.raises(StaleClaimError, match="expired or was forgotten"):
        await journal.append(rollout, FIRST, deadline=soon())


async def test_a_rollout_that_grows_too_large_is_refused(new_journal):
    journal = new_journal(StoreSettings(max_trajectory_bytes=500))
    rollout = await journal.open("rollout", deadline=soon())

    with pytest.raises(StoreFullError, match="max_trajectory_bytes is 500"):
        await journal.append(rollout, Turn(prompt_ids=tuple(range(200)), response_ids=(1,)), deadline=soon())

    assert (await journal.read("rollout", deadline=soon())).turns == ()


@pytest.fixture
async def attempt_at_run(redis_url, request):
    journals = []

    def at(number):
        journals.append(RolloutJournal.from_url(redis_url, request.node.name, attempt=number))
        return journals[-1]

    yield at
    for journal in journals:
        await journal.close()


async def test_a_stale_attempt_at_the_run_opens_no_rollout(attempt_at_run):
    stale = attempt_at_run(1)
    await stale.take_run(deadline=soon())
    await attempt_at_run(2).take_run(deadline=soon())

    with pytest.raises(StaleClaimError, match=r"Attempt 1 at run .* is stale: attempt 2 has begun"):
        await stale.open("step-4/prompt-1/sample-0", deadline=soon())

    assert await stale.names(deadline=soon()) == []


async def test_a_stale_attempt_at_the_run_writes_nothing_to_what_it_has_open(attempt_at_run):
    stale, newest = attempt_at_run(1), attempt_at_run(2)
    await stale.take_run(deadline=soon())
    rollout = await stale.append(await stale.open("sample-0", deadline=soon()), FIRST, deadline=soon())
    await newest.take_run(deadline=soon())

    with pytest.raises(StaleClaimError):
        await stale.append(rollout, SECOND, deadline=soon())
    with pytest.raises(StaleClaimError):
        await stale.finish(rollout, {"stop_reason": "completed"}, deadline=soon())
    with pytest.raises(StaleClaimError):
        await stale.forget("sample-0", deadline=soon())

    carried_on = await newest.open("sample-0", deadline=soon())
    assert carried_on.turns == (FIRST,)
    assert not carried_on.finished


async def test_a_stale_attempt_that_was_slow_to_open_takes_nothing_over(attempt_at_run):
    # It looked before the newer attempt began, and opens after it.
    slow, newest = attempt_at_run(1), attempt_at_run(2)
    await newest.open("sample-0", deadline=soon())

    with pytest.raises(StaleClaimError):
        await slow.open("sample-0", deadline=soon())

    kept = await newest.read("sample-0", deadline=soon())
    assert kept is not None
    assert kept.attempt == 1


async def test_an_older_attempt_at_the_run_does_not_take_it(attempt_at_run):
    await attempt_at_run(3).take_run(deadline=soon())

    with pytest.raises(StaleClaimError, match="attempt 3 has begun"):
        await attempt_at_run(2).take_run(deadline=soon())


async def test_the_same_attempt_may_take_the_run_again(attempt_at_run):
    await attempt_at_run(2).take_run(deadline=soon())
    await attempt_at_run(2).take_run(deadline=soon())

    assert (await attempt_at_run(2).open("sample-0", deadline=soon())).turns == ()
