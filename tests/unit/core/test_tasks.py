import asyncio

from turnmill.core.tasks import is_cancelled


async def test_cancellation_of_an_awaited_future_is_distinguished_from_cancellation_of_the_task():
    shared: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    findings = []

    async def wait() -> None:
        try:
            await shared
        except asyncio.CancelledError:
            findings.append(is_cancelled())

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    shared.cancel()
    await waiting
    shared = asyncio.get_running_loop().create_future()
    ended = asyncio.create_task(wait())
    await asyncio.sleep(0)
    ended.cancel()
    await ended

    assert findings == [False, True]
