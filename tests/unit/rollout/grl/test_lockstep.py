"""Synchronous turns of the episodes of a group."""

import asyncio

import pytest

from turnmill.rollout.grl.lockstep import Lockstep


@pytest.fixture(autouse=True)
async def time_limit():
    async with asyncio.timeout(10):
        yield


async def take_turns(lockstep: Lockstep, log: list[tuple[int, int]], member: int, count: int) -> None:
    with lockstep.taking_part():
        for turn in range(count):
            await lockstep.wait()
            log.append((turn, member))
            for _ in range(member):
                await asyncio.sleep(0)


async def test_no_turn_begins_before_all_episodes_have_ended_the_previous_one():
    log: list[tuple[int, int]] = []
    lockstep = Lockstep(4)

    await asyncio.gather(*(take_turns(lockstep, log, member, 3) for member in range(4)))

    assert [turn for turn, _ in log] == [0] * 4 + [1] * 4 + [2] * 4


async def test_finished_episodes_are_not_awaited():
    log: list[tuple[int, int]] = []
    lockstep = Lockstep(3)

    await asyncio.gather(*(take_turns(lockstep, log, member, member + 1) for member in range(3)))

    assert [turn for turn, _ in log] == [0, 0, 0, 1, 1, 2]


async def test_failed_episodes_are_not_awaited():
    lockstep = Lockstep(2)

    async def fail() -> None:
        with lockstep.taking_part():
            raise RuntimeError

    log: list[tuple[int, int]] = []
    results = await asyncio.gather(take_turns(lockstep, log, 0, 2), fail(), return_exceptions=True)

    assert isinstance(results[1], RuntimeError)
    assert log == [(0, 0), (1, 0)]


async def test_an_episode_cancelled_while_waiting_is_not_counted():
    lockstep = Lockstep(3)
    log: list[tuple[int, int]] = []
    waiting = asyncio.create_task(take_turns(lockstep, log, 9, 1))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    await asyncio.gather(*(take_turns(lockstep, log, member, 2) for member in range(2)))

    assert [turn for turn, _ in log] == [0, 0, 1, 1]


async def test_episodes_that_never_begin_can_leave():
    lockstep = Lockstep(3)
    log: list[tuple[int, int]] = []
    waiting = asyncio.create_task(take_turns(lockstep, log, 0, 1))
    await asyncio.sleep(0)

    lockstep.leave(2)
    await waiting

    assert log == [(0, 0)]
