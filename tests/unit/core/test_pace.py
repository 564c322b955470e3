import asyncio
from collections import Counter

from support.loop_iterations import LoopIterations
from turnmill.core.pace import Pace


async def test_few_go_on_in_each_iteration_in_the_order_in_which_they_asked():
    pace, iterations, passed = Pace(3), LoopIterations(), []

    async def go_on(number: int) -> None:
        await pace.wait()
        passed.append((number, iterations.number))

    await asyncio.gather(*(go_on(number) for number in range(10)))

    assert [number for number, _ in passed] == list(range(10))
    assert sorted(Counter(iteration for _, iteration in passed).values()) == [1, 3, 3, 3]


async def test_one_that_asks_alone_does_not_wait():
    pace, iterations = Pace(1), LoopIterations()

    for _ in range(3):
        before = iterations.number
        await pace.wait()
        assert iterations.number == before
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_one_that_is_cancelled_takes_nobodys_turn():
    pace = Pace(1)
    first, cancelled, *others = [asyncio.create_task(pace.wait()) for _ in range(4)]
    await asyncio.sleep(0)

    cancelled.cancel()

    await asyncio.wait_for(asyncio.gather(first, *others), 10)
    assert cancelled.cancelled()


async def test_one_that_asks_while_others_wait_goes_on_after_them():
    pace, passed = Pace(1), []

    async def go_on(number: int) -> None:
        await pace.wait()
        passed.append(number)

    first = [asyncio.create_task(go_on(number)) for number in range(3)]
    await first[0]
    await go_on(3)
    await asyncio.gather(*first)

    assert passed == [0, 1, 2, 3]
