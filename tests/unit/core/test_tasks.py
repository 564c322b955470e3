import asyncio

from turnmill.core.tasks import is_cancelled


async def test_a_wait_that_another_gave_up_is_told_from_an_end_of_the_task_itself():
    shared: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    seen = []

    async def wait() -> None:
        try:
            await shared
        except asyncio.CancelledError:
            seen.append(is_cancelled())

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    shared.cancel()
    await waiting
    shared = asyncio.get_running_loop().create_future()
    ended = asyncio.create_task(wait())
    await asyncio.sleep(0)
    ended.cancel()
    await ended

    assert seen == [False, True]
