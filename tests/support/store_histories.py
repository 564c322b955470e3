"""Histories of clients, tool servers and a store that fail: who saw which state, and when.

Four servers share a store with a replica. Meanwhile connections break, answers are lost, servers die or stand still,
the store is killed and loses its last second, the replica takes over while some servers still write to the old primary,
and the clock steps. Everything random comes from a seed, except what the machine's own timing decides.
"""

import asyncio
import itertools
import random
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import redis.exceptions

from support.dying_servers import SETTINGS, SMALL_CACHE, ServerDiedError, ToolServer
from support.faulty_store import CLOCK, SAMPLE_SECONDS, Server, Wire
from support.history_checker import Operation
from support.journal_histories import JournalPlayer
from turnmill.core.errors import CallMismatchError, LostWriteError, PoisonCallError, StoreError
from turnmill.trajectories import scripts, store
from turnmill.trajectories.base import CallKey

NUM_SERVERS = 4
CALLS_PER_LOOP, CLIENTS, CALLS_PER_CLIENT = 20, 3, 6
MAX_TRIES = 50
LOOPS_AT_ONCE, SHARED_AT_ONCE, JOURNALS_AT_ONCE = 16, 8, 4
CALL_SECONDS = 60.0
TYPED = (LostWriteError, PoisonCallError, CallMismatchError)

_SHIFTED_TIME = f"""(function()
  local time = redis.call('TIME')
  return {{string.format('%.0f', tonumber(time[1]) + tonumber(redis.call('GET', '{CLOCK}') or 0)), time[2]}}
end)()"""

SABOTAGES: dict[str, list[tuple[str, str]]] = {
    "fencing": [
        ("if not held or held.token ~= token then", "if false then"),
        ("if has_id and redis.call('HEXISTS', CALLS, call) == 1 then", "if false then"),
    ],
    "versions": [("if ARGV[11] ~= '' then", "if false then")],
    "claims": [
        ("elseif held and held.stamp ~= expired then", "elseif false then"),
        ("if not held or held.token ~= token then", "if false then"),
    ],
}
"""Guarantees of the store, each with the replacements in its scripts that break it."""


@dataclass(slots=True)
class History:
    """What happened in a run."""

    operations: list[Operation] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    """Trajectories by how they ended: complete, the name of an error, or abandoned at a loss of the store."""

    num_turns: int = 0
    """Turns that journals have acknowledged."""

    hung: list[str] = field(default_factory=list)
    """Calls without an answer for `CALL_SECONDS`."""

    problems: list[str] = field(default_factory=list)
    """Journals that lost a turn, mixed two processes' turns or took an end without the turns before it."""


class StoreHistory:
    """One run with its servers, its store and its faults."""

    def __init__(self, seed: int) -> None:
        self.history = History()
        self._chance = random.Random(seed)
        self._numbers = itertools.count()
        self._losses = 0
        self._whole = asyncio.Event()
        self._whole.set()
        self._replication = Wire()
        self._wires: list[Wire] = []
        self._urls: Sequence[str] = ()
        self._servers: list[ToolServer] = []
        self._stores: list[Server] = []

    async def play(self, num_operations: int) -> History:
        """Gather a history of at least so many operations."""
        # Names of sockets are limited to 107 bytes, so the folder is not the caller's.
        with tempfile.TemporaryDirectory(prefix="history-") as folder:
            try:
                await self._start(Path(folder))
                async with asyncio.TaskGroup() as group:
                    background = [group.create_task(self._disturb()), group.create_task(self._sample())]
                    plays = (
                        [self._play_loop] * LOOPS_AT_ONCE
                        + [self._play_shared] * SHARED_AT_ONCE
                        + [self._play_journal] * JOURNALS_AT_ONCE
                    )
                    await asyncio.wait([group.create_task(self._repeat(play, num_operations)) for play in plays])
                    for task in background:
                        task.cancel()
            finally:
                await self._stop()
        return self.history

    # ---- clients ----

    async def _repeat(self, play: Callable[[str], Awaitable[str]], num_operations: int) -> None:
        while len(self.history.operations) < num_operations and not self.history.hung:
            self.history.ended[await play(f"t{next(self._numbers)}")] += 1

    async def _play_loop(self, trajectory: str) -> str:
        """An agent loop: one call after the other, each with the version that it has seen last."""
        version, losses, sent = "", self._losses, []
        for number in range(CALLS_PER_LOOP):
            writes = self._chance.random() < 0.8
            repeats = 2 if self._chance.random() < 0.2 else 1
            answers: list[str | Exception] = []
            calls = [
                self._call(trajectory, f"c{number}", writes=writes, after=version, answers=answers)
                for _ in range(repeats)
            ]
            await asyncio.gather(*calls)
            # A loop takes the first answer.
            if isinstance(answers[0], Exception):
                return type(answers[0]).__name__
            sent.append((f"c{number}", writes, version))
            version = answers[0]
        if self._chance.random() < 0.5:
            await self._finish(trajectory)
        # Repeats that come late get what was answered, also after the end.
        for call, writes, after in self._chance.sample(sent, 3):
            if self._losses == losses:
                await self._call(trajectory, call, writes=writes, after=after, answers=[""])
        return "complete"

    async def _finish(self, trajectory: str) -> None:
        for _ in range(MAX_TRIES):
            try:
                await self._chance.choice(self._servers).finish(trajectory)
            except (StoreError, redis.exceptions.RedisError):
                await asyncio.sleep(self._chance.uniform(0.0, 0.05))
            else:
                return

    async def _play_shared(self, trajectory: str) -> str:
        """Several clients of one trajectory, which know no versions: abandoned when the store loses writes."""
        await self._whole.wait()
        losses = self._losses

        async def play(client: int) -> None:
            for number in range(CALLS_PER_CLIENT):
                if self._losses != losses:
                    return
                answers: list[str | Exception] = []
                writes, has_id = self._chance.random() < 0.8, self._chance.random() < 0.8
                await self._call(trajectory, f"c{client}-{number}", writes=writes, answers=answers, has_id=has_id)
                if isinstance(answers[0], Exception):
                    return

        await asyncio.gather(*map(play, range(CLIENTS)))
        return "complete" if self._losses == losses else "abandoned"

    async def _play_journal(self, trajectory: str) -> str:
        """Processes that play one trajectory with a journal, each from where the one before it came to."""
        player = JournalPlayer(
            trajectory, self._urls, self._chance, lambda: self._losses if self._whole.is_set() else None
        )
        ended = await player.play()
        self.history.problems += player.problems
        self.history.num_turns += player.num_turns
        return ended

    async def _call(
        self,
        trajectory: str,
        call: str,
        *,
        writes: bool,
        answers: list[str | Exception],
        after: str | None = None,
        has_id: bool = True,
    ) -> None:
        """Send a call until it is answered; add the version after it to `answers`, or what ends the trajectory.

        A call without an id is sent once, as it might take effect twice.
        While the store loses writes, only the first answer of a client that knows versions counts: the one that it
        takes. Two primaries may answer two repeats differently, and a client without versions does not notice a loss.
        """
        clock, losses, whole = asyncio.get_running_loop().time, self._losses, self._whole.is_set()
        begun, key = clock(), CallKey(trajectory, call if has_id else None, after=after or "")
        (seconds,) = self._chance.choices((0.0, 0.01, 0.3), (0.8, 0.17, 0.03))
        while clock() < begun + CALL_SECONDS:
            server = self._chance.choice(self._servers)
            try:
                seen, version = await server.execute(key, call, writes=writes, seconds=seconds)
            except TYPED as error:
                self.history.operations.append(Operation(trajectory, call, writes, begun))
                answers.append(error)
                return
            except (StoreError, ServerDiedError, redis.exceptions.RedisError):
                await asyncio.sleep(self._chance.uniform(0.0, 0.05))
                if has_id:
                    continue
                self.history.operations.append(Operation(trajectory, call, writes, begun))
                answers.append("")
                return
            lossless = whole and losses == self._losses and self._whole.is_set()
            if lossless or (after is not None and not answers):
                self.history.operations.append(Operation(trajectory, call, writes, begun, clock(), seen))
            else:
                self.history.operations.append(Operation(trajectory, call, writes, begun))
            answers.append(version)
            return
        self.history.hung.append(f"{trajectory} {call}")
        answers.append(TimeoutError())

    # ---- faults ----

    async def _start(self, folder: Path) -> None:
        self._folder = folder
        await self._replication.start()
        self._primary = self._new_store()
        await self._primary.start()
        self._replica = await self._new_replica()
        for _ in range(NUM_SERVERS):
            wire = Wire()
            await wire.start()
            wire.target = self._primary.socket
            self._wires.append(wire)
        self._start_servers([wire.url for wire in self._wires])

    def _start_servers(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._servers = [
            ToolServer(url, "history", SMALL_CACHE if number % 2 else SETTINGS) for number, url in enumerate(urls)
        ]

    async def _stop(self) -> None:
        for server in self._servers:
            await server.close()
        for wire in self._wires:
            await wire.stop()
        await self._replication.stop()
        for each in self._stores:
            each.kill()

    def _new_store(self) -> Server:
        self._stores.append(Server(self._folder / f"store-{len(self._stores)}"))
        return self._stores[-1]

    async def _new_replica(self) -> Server:
        self._replication.target, self._replication.loses_answers = self._primary.socket, False
        replica = self._new_store()
        await replica.start(replica_of=self._replication.port)
        return replica

    async def _sample(self) -> None:
        while True:
            with suppress(FileNotFoundError, ValueError):
                self._primary.sample()
            await asyncio.sleep(SAMPLE_SECONDS)

    async def _disturb(self) -> None:
        faults = self._faults()
        while True:
            await asyncio.sleep(self._chance.uniform(0.02, 0.2))
            (fault,) = self._chance.choices(list(faults), list(faults.values()))
            self.history.faults[fault.__name__.removeprefix("_")] += 1
            await fault()

    def _faults(self) -> dict[Callable[[], Awaitable[None]], int]:
        """Return the faults with their weights."""
        return {
            self._break_connections: 4, self._lose_answers: 4, self._kill_server: 3, self._pause_server: 3,
            self._step_clock: 2, self._cut_power: 1, self._fail_over: 1,
        }  # fmt: skip

    async def _break_connections(self) -> None:
        for wire in self._chance.sample(self._wires, self._chance.randint(1, NUM_SERVERS)):
            wire.cut()

    async def _lose_answers(self) -> None:
        wire = self._chance.choice(self._wires)
        wire.loses_answers = True
        await asyncio.sleep(self._chance.uniform(0.05, 0.6))
        wire.loses_answers = False
        wire.cut()

    async def _kill_server(self) -> None:
        await self._chance.choice(self._servers).die()

    async def _pause_server(self) -> None:
        await self._chance.choice(self._servers).stand_still(SETTINGS.lease_seconds * self._chance.uniform(0.5, 3.0))

    async def _step_clock(self) -> None:
        async with self._primary.client() as client:
            await client.set(CLOCK, self._chance.choice((-3600, -1, 0, 1, 3600)))

    async def _cut_power(self) -> None:
        self._losses += 1
        self._primary.kill()
        for wire in self._wires:
            wire.cut()
        self._primary.lose_tail(self._chance)
        await self._primary.start()

    async def _fail_over(self) -> None:
        """Let the replica take over with less than the primary had, while servers notice one after the other."""
        await self._replica.ready(replica=True)
        self._replication.loses_answers = True
        await asyncio.sleep(self._chance.uniform(0.0, 0.3))
        self._losses += 1
        # Until all servers have noticed, there are two primaries.
        self._whole.clear()
        self._replication.target = None
        self._replication.cut()
        await self._replica.promote()
        for wire in self._chance.sample(self._wires, NUM_SERVERS):
            await asyncio.sleep(self._chance.choice((0.0, 0.1)))
            wire.target = self._replica.socket
            wire.cut()
        self._primary.kill()
        self._whole.set()
        self._primary = self._replica
        self._replica = await self._new_replica()


@contextmanager
def changed_scripts(sabotage: str | None = None, *, steps_clock: bool = True) -> Iterator[None]:
    """Give the store's scripts a clock that steps, and break a guarantee of them."""
    clock = [("redis.call('TIME')", _SHIFTED_TIME)] if steps_clock else []
    replacements = [*clock, *SABOTAGES.get(sabotage or "", ())]
    loaded = {name: value for name, value in vars(store).items() if isinstance(value, scripts.Script)}
    for text, _ in replacements:
        assert any(text in script.source for script in loaded.values()), f"no script has {text!r}"
    with ExitStack() as stack:
        for name, script in loaded.items():
            stack.enter_context(mock.patch.object(store, name, _changed(script, replacements)))
        yield


def _changed(script: scripts.Script, replacements: list[tuple[str, str]]) -> scripts.Script:
    source = script.source
    for old, new in replacements:
        source = source.replace(old, new)
    return scripts.of(source)
