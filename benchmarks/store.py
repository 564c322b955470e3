"""Times what a tool call asks of the trajectory store, on a store of its own: `python benchmarks/store.py`."""

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from uuid import uuid4

from turnmill.core.trajectory import Turn
from turnmill.trajectories.base import CallKey, Change, Claim
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.embedded import EmbeddedStore
from turnmill.trajectories.journal import RolloutJournal
from turnmill.trajectories.settings import StoreSettings
from turnmill.trajectories.store import TrajectoryStore

SECONDS = 30.0
KIB = 1024
TURN = Turn(
    prompt_ids=tuple(range(1000)),
    response_ids=tuple(range(200)),
    log_probs=tuple(-0.1 * number for number in range(200)),
    response_text="x" * 800,
    observation="y" * 400,
)


class Benchmark:
    """Operations on one store, one after another."""

    def __init__(self, url: str) -> None:
        self.store = TrajectoryStore.from_url(url, uuid4().hex)
        self.uncached = TrajectoryStore.from_url(url, uuid4().hex, StoreSettings(cache_bytes=0))
        self.journal = RolloutJournal.from_url(url, uuid4().hex)
        self.calls = 0

    async def close(self) -> None:
        for each in (self.store, self.uncached, self.journal):
            await each.close()

    async def begin(self, store: TrajectoryStore, *, stateful: bool = True) -> Claim:
        self.calls += 1
        key = CallKey("trajectory", f"call-{self.calls}")
        claim = await store.begin(key, "tool", stateful=stateful, deadline=deadline_in(SECONDS))
        assert isinstance(claim, Claim)
        return claim

    async def turn(self, store: TrajectoryStore, num_bytes: int) -> None:
        """A call with its state, from its claim to its record."""
        claim = await self.begin(store)
        change = Change(written={"variables": str(self.calls).encode() + bytes(num_bytes)})
        await store.commit(claim, b"observation", change, deadline=deadline_in(SECONDS))


async def median_ms(times: int, do: Callable[[], Awaitable[object]]) -> float:
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        await do()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken) * 1000


async def measure(url: str, times: int) -> dict[str, float]:
    benchmark = Benchmark(url)
    store = benchmark.store
    claims: list[Claim] = []

    async def begin() -> None:
        claims.append(await benchmark.begin(store, stateful=False))

    async def commit() -> None:
        await store.commit(claims.pop(), b"observation", deadline=deadline_in(SECONDS))

    async def append() -> None:
        nonlocal rollout
        rollout = await benchmark.journal.append(rollout, TURN, deadline=deadline_in(SECONDS))

    figures = {
        "begin, no state": await median_ms(times, begin),
        "commit, no state": await median_ms(times, commit),
        "turn, 1 KiB of state": await median_ms(times, lambda: benchmark.turn(store, KIB)),
        "turn, 1 KiB of state, not cached": await median_ms(times, lambda: benchmark.turn(benchmark.uncached, KIB)),
    }
    for store_and_name in ((store, ""), (benchmark.uncached, ", not cached")):
        each, name = store_and_name
        figures[f"turn, 1 MiB of state{name}"] = await median_ms(
            max(1, times // 20), lambda each=each: benchmark.turn(each, KIB * KIB)
        )
    rollout = await benchmark.journal.open("rollout", deadline=deadline_in(SECONDS))
    figures["journal: append a turn of 1,200 tokens"] = await median_ms(times // 4, append)
    figures["journal: read it all again"] = await median_ms(
        5, lambda: benchmark.journal.read("rollout", deadline=deadline_in(SECONDS))
    )
    await benchmark.close()
    return figures


async def turns_per_second(url: str, *, clients: int, times: int) -> float:
    """Of many trajectories at once, in one process."""
    store = TrajectoryStore.from_url(url, uuid4().hex)

    async def play(trajectory_id: str) -> None:
        for index in range(times // clients):
            key = CallKey(trajectory_id, f"call-{index}")
            claim = await store.begin(key, "tool", deadline=deadline_in(SECONDS))
            assert isinstance(claim, Claim)
            await store.commit(claim, b"observation", Change(written={"x": b"1"}), deadline=deadline_in(SECONDS))

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for client in range(clients):
            group.create_task(play(f"trajectory-{client}"))
    taken = time.perf_counter() - begun
    await store.close()
    return times / taken


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=1000, help="operations of each kind")
    parser.add_argument("--redis", help="URL of a running store; left out, one is started")
    arguments = parser.parse_args()
    if arguments.redis:
        await report(arguments.redis, arguments.times)
        return
    async with EmbeddedStore() as store:
        await report(store.url, arguments.times)


async def report(url: str, times: int) -> None:
    for name, figure in (await measure(url, times)).items():
        print(f"{name:45} median {figure:7.3f} ms")
    print(f"{'turns of 64 trajectories at once':45} {await turns_per_second(url, clients=64, times=times * 4):9.0f} /s")


if __name__ == "__main__":
    asyncio.run(main())
