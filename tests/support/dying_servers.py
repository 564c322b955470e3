"""Tool servers in one process, with connections of their own, that die and stand still."""

import asyncio
import itertools
from dataclasses import replace

from turnmill.trajectories.base import CallKey, Change, Recorded, State
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.settings import StoreSettings
from turnmill.trajectories.store import TrajectoryStore

TOOL = "shell"
# The store expires keys by its clock, which steps by up to an hour: records stay for longer.
SETTINGS = StoreSettings(lease_seconds=0.4, finished_seconds=2 * 3600)
SMALL_CACHE = replace(SETTINGS, cache_bytes=8 * 1024)
TRY_SECONDS = 2.0


class ServerDiedError(Exception):
    """The server of a call has died."""


class ToolServer:
    """A tool server with connections of its own: executes calls as the real one does."""

    _executions = itertools.count()

    def __init__(self, url: str, run: str, settings: StoreSettings = SETTINGS) -> None:
        self._url = url
        self._run = run
        self._settings = settings
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._calls: set[asyncio.Task[tuple[tuple[str, ...], str]]] = set()
        self._store = self._new_store()

    async def execute(self, key: CallKey, name: str, *, writes: bool, seconds: float) -> tuple[tuple[str, ...], str]:
        """Return what the call, a unique name in its trajectory, saw, and the version after it."""
        task = asyncio.create_task(self._execute(key, name, writes=writes, seconds=seconds))
        self._calls.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                task.cancel()
                raise
            raise ServerDiedError from None
        finally:
            self._calls.discard(task)

    async def finish(self, trajectory_id: str) -> None:
        """End a trajectory."""
        await self._store.finish(trajectory_id, deadline=deadline_in(TRY_SECONDS))

    async def _execute(self, key: CallKey, name: str, *, writes: bool, seconds: float) -> tuple[tuple[str, ...], str]:
        store = self._store
        begun = await store.begin(key, TOOL, deadline=deadline_in(TRY_SECONDS))
        if isinstance(begun, Recorded):
            return _decode(begun.result), begun.version
        seen = _decode(b" ".join(begun.state[part] for part in sorted(begun.state)))
        await asyncio.sleep(seconds)
        await self._resumed.wait()
        change = None
        if writes:
            execution = next(self._executions)
            seen = (*seen, f"{name}.{execution}")
            change = _change(begun.state, seen, execution)
        await store.commit(begun, " ".join(seen).encode(), change, deadline=deadline_in(TRY_SECONDS))
        return seen, begun.version_after

    async def die(self) -> None:
        """Lose all calls and claims, and start again without a cache."""
        for task in list(self._calls):
            task.cancel()
        await self._store.close()
        self._store = self._new_store()

    async def stand_still(self, seconds: float) -> None:
        """Neither renew claims nor commit for a while; then go on as if nothing had happened."""
        self._resumed.clear()
        await self._store._renewal.close()
        await asyncio.sleep(seconds)
        self._resumed.set()

    async def close(self) -> None:
        """End all connections."""
        await self._store.close()

    def _new_store(self) -> TrajectoryStore:
        return TrajectoryStore.from_url(self._url, self._run, self._settings)


def _change(state: State, seen: tuple[str, ...], execution: int) -> Change:
    """Return a change that adds the last entry: mostly as a part of its own, at times as one part for all of them."""
    if execution % 8 == 0:
        return Change(written={"00000": " ".join(seen).encode()}, forget=True)
    if execution % 8 == 1:
        return Change(written={"00000": " ".join(seen).encode()}, removed=tuple(state))
    return Change(written={f"{len(seen):05d}": seen[-1].encode()})


def _decode(log: bytes) -> tuple[str, ...]:
    return tuple(log.decode().split())
