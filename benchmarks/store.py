"""Speed of the trajectory store: times of single operations, and turns of many trajectories at once.

OMP_NUM_THREADS=1 .venv/bin/python benchmarks/store.py [--times 1000] [--redis URL]
OMP_NUM_THREADS=1 .venv/bin/python benchmarks/store.py --shell [--times 200]  # shell turns, with a bare store beside
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from uuid import uuid4

from runs import table

from turnmill.core.trajectory import Turn
from turnmill.observability.tool_metrics import ToolMetrics
from turnmill.sandboxes.fork import ForkSandbox
from turnmill.tool_server.calls import Action, CallExecutor
from turnmill.tool_server.tool_set import ToolSet
from turnmill.tools.base import ToolContext
from turnmill.tools.bash_terminal import BashTerminal
from turnmill.trajectories.base import CallKey, Change, Claim
from turnmill.trajectories.client import StoreClient, deadline_in
from turnmill.trajectories.embedded import EmbeddedStore
from turnmill.trajectories.journal import TrajectoryJournal
from turnmill.trajectories.settings import StoreSettings
from turnmill.trajectories.store import TrajectoryStore

SECONDS, TRAJECTORIES, KIB = 30.0, 64, 1024
OBSERVATION = b"x" * 200
TURN = Turn(
    prompt_ids=tuple(range(1000)),
    response_ids=tuple(range(200)),
    log_probs=tuple(-0.1 * number for number in range(200)),
    response_text="x" * 800,
    observation="y" * 400,
)


class StoreCalls:
    """Calls of one trajectory after another, each with an id of its own."""

    def __init__(self, url: str, settings: StoreSettings | None = None) -> None:
        self.store = TrajectoryStore.from_url(url, uuid4().hex, settings)
        self.claims: list[Claim] = []
        self.num_begun = 0

    async def begin(self, trajectory_id: str = "trajectory", *, stateful: bool = False) -> Claim:
        self.num_begun += 1
        key = CallKey(trajectory_id, f"call-{self.num_begun}")
        claim = await self.store.begin(key, "tool", stateful=stateful, deadline=deadline_in(SECONDS))
        assert isinstance(claim, Claim)
        self.claims.append(claim)
        return claim

    async def commit(self) -> None:
        await self.store.commit(self.claims.pop(), OBSERVATION, deadline=deadline_in(SECONDS))

    async def turn(self, num_bytes: int, trajectory_id: str = "trajectory") -> None:
        claim = await self.begin(trajectory_id, stateful=True)
        self.claims.remove(claim)
        change = Change(written={"variables": str(self.num_begun).encode() + bytes(num_bytes)})
        await self.store.commit(claim, OBSERVATION, change, deadline=deadline_in(SECONDS))


async def median_ms(times: int, do: Callable[[], Awaitable[object]]) -> str:
    """The median time of doing something, in milliseconds."""
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        await do()
        taken.append(time.perf_counter() - begun)
    return f"{statistics.median(taken) * 1000:.2f}"


async def measure_calls(url: str, times: int) -> list[tuple[str, str]]:
    """Single operations, and turns with their state."""
    calls, uncached = StoreCalls(url), StoreCalls(url, StoreSettings(cache_bytes=0))
    few = max(1, times // 20)
    rows = [
        ("`begin`, tool without state", await median_ms(times, calls.begin)),
        ("`commit`, tool without state", await median_ms(times, calls.commit)),
        ("turn: `begin` and `commit` of 1 KiB of state", await median_ms(times, lambda: calls.turn(KIB))),
        ("the same, state read from the store", await median_ms(times, lambda: uncached.turn(KIB))),
        ("turn with 1 MiB of state", await median_ms(few, lambda: calls.turn(KIB**2))),
        ("the same, state read from the store", await median_ms(few, lambda: uncached.turn(KIB**2))),
    ]
    await calls.store.close()
    await uncached.store.close()
    return rows


async def measure_journal(url: str, times: int) -> list[tuple[str, str]]:
    """The journal of a trajectory of many turns."""
    journal = TrajectoryJournal.from_url(url, uuid4().hex)
    trajectory = await journal.open("trajectory", deadline=deadline_in(SECONDS))

    async def append() -> None:
        nonlocal trajectory
        trajectory = await journal.append(trajectory, TURN, deadline=deadline_in(SECONDS))

    appended = await median_ms(times // 10, append)
    opened = await median_ms(5, lambda: journal.open("trajectory", deadline=deadline_in(SECONDS)))
    await journal.close()
    return [
        ("journal: append a turn of 1,200 tokens", appended),
        (f"journal: open a trajectory of {times // 10} such turns", opened),
    ]


async def turns_per_second(url: str, times: int) -> float:
    """Of many trajectories at once, in one process."""
    calls = StoreCalls(url)

    async def play(trajectory_id: str) -> None:
        for _ in range(times // TRAJECTORIES):
            await calls.turn(KIB, trajectory_id)

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for index in range(TRAJECTORIES):
            group.create_task(play(f"trajectory-{index}"))
    taken = time.perf_counter() - begun
    await calls.store.close()
    return times // TRAJECTORIES * TRAJECTORIES / taken


class BareStore:
    """Keeps state and nothing else: no claims, no journal of calls, no expiry."""

    def __init__(self, url: str) -> None:
        self.client = StoreClient(url)

    async def begin(self, key: CallKey, tool: str, *, stateful: bool, deadline: float) -> Claim:
        found = await self.client.command("HGETALL", f"bare:{key.trajectory_id}", deadline=deadline)
        return Claim(key, tool, 1, {name.decode(): value for name, value in found.items()}, stateful)

    async def commit(
        self, claim: Claim, result: bytes, change: Change | None = None, *, finishes: bool = False, deadline: float
    ) -> None:
        words = [word for pair in (change.written if change else {}).items() for word in pair]
        await self.client.command("HSET", f"bare:{claim.key.trajectory_id}", *words, deadline=deadline)

    async def release(self, claim: Claim, *, deadline: float) -> None:
        return None

    async def finish(self, trajectory_id: str, *, deadline: float) -> None:
        return None


async def report_shell(url: str, times: int) -> None:
    """Turns of a shell in turn with the one store and the other."""
    sandbox = ForkSandbox(preload=["turnmill.tools.sandboxed.shell"])
    tools = ToolSet([BashTerminal(ToolContext(sandbox))])
    stores = {"claims, journal and state": TrajectoryStore.from_url(url, uuid4().hex), "state alone": BareStore(url)}
    metrics = ToolMetrics()
    executors = {name: CallExecutor(tools, store, metrics) for name, store in stores.items()}
    taken: dict[str, list[float]] = {name: [] for name in executors}
    for turn in range(times):
        text = f"<bash>echo {turn} >> log; export TURN={turn}; echo $TURN</bash>"
        for name, executor in executors.items():
            begun = time.perf_counter()
            await executor.execute([Action("shell", text, {"call_id": str(turn)})], deadline=deadline_in(SECONDS))
            taken[name].append(time.perf_counter() - begun)
    medians = {name: statistics.median(times) * 1000 for name, times in taken.items()}
    least = min(medians.values())
    print(
        table(
            ("a shell turn with", "median ms", ""),
            [(name, f"{median:.2f}", f"{median / least - 1:+.1%}") for name, median in medians.items()],
        )
    )
    await sandbox.close()


async def report(url: str, times: int) -> None:
    rows = [*await measure_calls(url, times), *await measure_journal(url, times)]
    print(table(("", "median ms"), rows))
    print(f"\n{await turns_per_second(url, times * 4):.0f} turns/s of {TRAJECTORIES} trajectories at once")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=1000, help="operations of each kind")
    parser.add_argument("--redis", help="URL of a running store; left out, one is started")
    parser.add_argument("--shell", action="store_true", help="turns of a shell instead")
    arguments = parser.parse_args()
    what = report_shell if arguments.shell else report
    if arguments.redis:
        await what(arguments.redis, arguments.times)
        return
    async with EmbeddedStore() as store:
        await what(store.url, arguments.times)


if __name__ == "__main__":
    asyncio.run(main())
