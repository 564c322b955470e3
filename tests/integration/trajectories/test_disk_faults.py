"""The store on a disk that is full or slow: what it has acknowledged stays, and what it refuses has no effect."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

import pytest

from support.faulty_store import Server
from support.slow_disk import slow_disk
from turnmill.core.errors import LostWriteError, StaleClaimError, StoreUnavailableError
from turnmill.core.trajectory import Turn
from turnmill.sandboxes import kernel
from turnmill.trajectories.base import CallKey, Change, Claim, Recorded
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.journal import JournaledTrajectory, TrajectoryJournal
from turnmill.trajectories.store import TrajectoryStore

TOOL = "bash_terminal"
SOON, AMPLE = 0.5, 60.0
DISK_BYTES = 2**20
PART = os.urandom(2**14)

Answer = TypeVar("Answer")


@pytest.fixture(scope="session")
def link() -> None:
    """Run the test in namespaces of its own, see `conftest.py`: a small disk is mounted there."""


@pytest.fixture
def small_disk(link: None, tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    kernel.mount("tmpfs", str(folder), "tmpfs", 0, f"size={DISK_BYTES},mode=700")
    yield folder
    kernel.unmount(str(folder))


@asynccontextmanager
async def running(server: Server) -> AsyncIterator[Server]:
    try:
        await server.start()
        yield server
    finally:
        server.kill()


@asynccontextmanager
async def clients(server: Server) -> AsyncIterator[tuple[TrajectoryStore, TrajectoryJournal]]:
    """Return a tool server's and an agent loop's client."""
    url = f"unix://{server.socket}"
    store, journal = TrajectoryStore.from_url(url, "run"), TrajectoryJournal.from_url(url, "run")
    try:
        yield store, journal
    finally:
        await store.close()
        await journal.close()


async def call(store: TrajectoryStore, key: CallKey, *, seconds: float = AMPLE) -> tuple[str, str]:
    """Execute a call that counts; return the number and the version after it."""
    claim = await store.begin(key, TOOL, deadline=deadline_in(seconds))
    if isinstance(claim, Recorded):
        return claim.result.split()[0].decode(), claim.version
    assert isinstance(claim, Claim)
    number = b"%d" % (int(claim.state.get("number", b"0")) + 1)
    change = Change(written={"number": number, "part": PART})
    await store.commit(claim, number + b" " + PART, change, deadline=deadline_in(seconds))
    return number.decode(), claim.version_after


def turn(number: int) -> Turn:
    return Turn(prompt_ids=(1,), response_ids=(2,), response_text=f"{number}" + "x" * len(PART))


async def fill(store: TrajectoryStore, journal: TrajectoryJournal) -> tuple[int, str, JournaledTrajectory]:
    """Call and append until the disk is full; return the number and version of the last call, and the turns."""
    trajectory = await journal.open("loop", deadline=deadline_in(AMPLE))
    version = ""
    for number in range(DISK_BYTES // len(PART)):
        key = CallKey("t", str(number), after=version)
        answer = await until_refused(lambda key=key: call(store, key, seconds=SOON))  # type: ignore[misc]
        if answer is None:
            break
        seen, version = answer
        assert seen == str(number + 1)
        grown = await until_refused(
            lambda now=trajectory, number=number: journal.append(now, turn(number), deadline=deadline_in(SOON))  # type: ignore[misc]
        )
        if grown is None:
            break
        trajectory = grown
    else:
        raise AssertionError("the disk is not full")
    assert number >= 5
    return number, version, trajectory


async def until_refused(request: Callable[[], Awaitable[Answer]]) -> Answer | None:
    """Send a request until it is answered; return None if the disk is full."""
    while True:
        try:
            return await request()
        except StoreUnavailableError as error:
            # Otherwise the machine is too busy to answer in time.
            if "MISCONF" in str(error):
                return None


def make_room(disk: Path) -> None:
    kernel.mount("tmpfs", str(disk), "tmpfs", kernel.MS_REMOUNT, f"size={64 * DISK_BYTES}")


async def test_a_full_disk_refuses_calls_and_turns_until_it_has_room(small_disk: Path):
    async with running(Server(small_disk / "store")) as server, clients(server) as (store, journal):
        number, version, trajectory = await fill(store, journal)

        key = CallKey("t", "next", after=version)
        assert await until_refused(lambda: call(store, key, seconds=SOON)) is None
        assert await until_refused(lambda: journal.append(trajectory, turn(number), deadline=deadline_in(SOON))) is None
        make_room(small_disk)
        trajectory = await journal.append(trajectory, turn(number), deadline=deadline_in(AMPLE))
        seen, _ = await call(store, key)
        read = await journal.read("loop", deadline=deadline_in(AMPLE))

        assert int(seen) in (number + 1, number + 2)
        assert read is not None
        assert read.turns == trajectory.turns


async def test_a_store_that_is_killed_on_a_full_disk_undoes_nothing_unnoticed(small_disk: Path):
    async with running(Server(small_disk / "store")) as server, clients(server) as (store, journal):
        _, version, trajectory = await fill(store, journal)
        server.kill()
        make_room(small_disk)
        await server.start()

        await require_nothing_lost_unnoticed(store, journal, version, trajectory)


async def test_a_store_that_is_killed_on_a_slow_disk_undoes_nothing_unnoticed(link: None, tmp_path: Path):
    with slow_disk(tmp_path, 0.2) as disk:
        server = Server(tmp_path / "store", disk.command)
        async with running(server), clients(server) as (store, journal):

            async def play(name: str) -> tuple[str, JournaledTrajectory]:
                trajectory = await journal.open(name, deadline=deadline_in(AMPLE))
                version = ""
                for number in range(4):
                    seen, version = await call(store, CallKey(name, str(number), after=version))
                    assert seen == str(number + 1)
                    trajectory = await journal.append(trajectory, turn(number), deadline=deadline_in(AMPLE))
                return version, trajectory

            played = await asyncio.gather(*(play(f"t{index}") for index in range(6)))
            server.kill()
            assert disk.num_delayed > 5
            disk.seconds = 0.0
            await server.start()

            for version, trajectory in played:
                await require_nothing_lost_unnoticed(store, journal, version, trajectory)


async def require_nothing_lost_unnoticed(
    store: TrajectoryStore, journal: TrajectoryJournal, version: str, trajectory: JournaledTrajectory
) -> None:
    """The next call and the next turn find all that was acknowledged, or store it again, or are refused."""
    name = "t" if trajectory.name == "loop" else trajectory.name
    with suppress(LostWriteError):
        seen, _ = await call(store, CallKey(name, "next", after=version))
        assert int(seen) > len(trajectory.turns)
    # The journal itself is gone if it was opened within the time that was lost.
    with suppress(StaleClaimError):
        grown = await journal.append(trajectory, turn(len(trajectory.turns)), deadline=deadline_in(AMPLE))
        read = await journal.read(trajectory.name, deadline=deadline_in(AMPLE))
        assert read is not None
        assert read.turns == grown.turns
