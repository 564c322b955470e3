"""The trajectory store: what tools remember of trajectories, and what each call did, exactly once."""

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

from turnmill.core.errors import CallInProgressError, StaleClaimError, StoreFullError
from turnmill.trajectories import scripts
from turnmill.trajectories.base import CallKey, Change, Claim, Recorded, State
from turnmill.trajectories.cache import StateCache
from turnmill.trajectories.client import StoreClient
from turnmill.trajectories.keys import Keys
from turnmill.trajectories.renewal import Renewal
from turnmill.trajectories.settings import StoreSettings

BEGIN = scripts.load("begin", prelude="trajectory")
COMMIT = scripts.load("commit", prelude="trajectory")
RELEASE = scripts.load("release", prelude="trajectory", allow_oom=True)
RENEW = scripts.load("renew", prelude="trajectory", allow_oom=True)
FINISH = scripts.load("finish", prelude="trajectory", allow_oom=True)
DELETE = scripts.load("delete", prelude="trajectory", allow_oom=True)

FIRST_WAIT_SECONDS = 0.002
MAX_WAIT_SECONDS = 0.05
ANSWER_SECONDS = 0.05
"""Nobody who waits for a claim asks again with less time left: no answer would look like a store that is down."""

_NOTHING: State = MappingProxyType({})
_NO_CHANGE = Change()


@dataclass(frozen=True, slots=True)
class _Held:
    """Another claim is in the way, for so long at most unless it is renewed."""

    left_seconds: float


class TrajectoryStore:
    """The trajectories of one run, for any number of servers at once.

    A call is begun, done and committed:

        begun = await store.begin(key, "bash_terminal", stateful=True, deadline=deadline)
        if isinstance(begun, Recorded):
            return begun.result
        result, change = ...    # with begun.state
        await store.commit(begun, result, change, deadline=deadline)

    or released, if nothing of it took effect. Deadlines are in the event loop's time. Until then every operation is
    tried again by itself, and may also be sent again by the caller: none takes effect twice. What is not done by then
    raises StoreUnavailableError, or CallInProgressError where another claim is in the way.
    """

    def __init__(self, client: StoreClient, run: str, settings: StoreSettings | None = None) -> None:
        self._client = client
        self._keys = Keys(run)
        self._settings = settings or StoreSettings()
        self._cache = StateCache(self._settings.cache_bytes)
        self._renewal = Renewal(self._renew_in_time, self._settings.lease_seconds, self._settings.max_call_seconds)
        self.num_taken_over = 0
        """Claims that this server took from one that let them run out."""

    @classmethod
    def from_url(cls, url: str, run: str, settings: StoreSettings | None = None) -> Self:
        """A store with connections of its own; `close` closes them."""
        settings = settings or StoreSettings()
        return cls(StoreClient(url, max_connections=settings.max_connections), run, settings)

    async def begin(self, key: CallKey, tool: str, *, stateful: bool = True, deadline: float) -> Claim | Recorded:
        """Claim a call and get the tool's state, or get what the call did when it was done before.

        Where another server does the call, or a call before it on the same stateful tool, this waits for the end of
        it or of its lease. The claim is renewed by itself until it is committed or released; either must follow.
        """
        if not stateful and key.call_id is None:
            # Nobody repeats it and it touches nothing: the store has no part in it.
            return Claim(key, tool, 0, _NOTHING, stateful=False)
        loop = asyncio.get_running_loop()
        holder, wait_seconds = secrets.token_hex(8), FIRST_WAIT_SECONDS
        begun = await self._ask_for_claim(key, tool, stateful, holder, deadline)
        while isinstance(begun, _Held):
            pause = min(wait_seconds, begun.left_seconds)
            if loop.time() + pause + ANSWER_SECONDS >= deadline:
                raise CallInProgressError(
                    f"Another call of {tool!r} is in progress for trajectory {key.trajectory_id!r}, "
                    "beyond this call's deadline: send it again later."
                )
            await asyncio.sleep(pause)
            wait_seconds = min(wait_seconds * 1.5, MAX_WAIT_SECONDS)
            begun = await self._ask_for_claim(key, tool, stateful, holder, deadline)
        return begun

    async def commit(
        self,
        claim: Claim,
        result: bytes,
        change: Change | None = None,
        *,
        finishes: bool = False,
        deadline: float,
    ) -> None:
        """Record what a call did and change the tool's state, both or none, and let the claim go.

        With `finishes` the call ends its trajectory: all state is forgotten in the same moment. StaleClaimError means
        that another server has taken the call over, or that the trajectory was finished: nothing took effect.
        """
        if claim.token == 0:
            if finishes:
                await self.finish(claim.key.trajectory_id, deadline=deadline)
            return
        change = change or _NO_CHANGE
        changes = bool(change.forget or change.written or change.removed)
        if changes and not claim.stateful:
            raise ValueError(f"Tool {claim.tool!r} changes state: its calls must begin with stateful=True.")
        removed = [name for name in change.removed if name not in change.written]
        try:
            answer, *rest = await self._run(
                COMMIT,
                claim.key.trajectory_id,
                *_call(claim.key, claim.tool, claim.stateful),
                claim.token,
                result,
                _flag(finishes),
                self._expiry_ms(finished=finishes),
                self._settings.max_trajectory_bytes,
                _flag(changes),
                _flag(change.forget),
                len(removed),
                *map(_bytes, removed),
                *(word for name, value in change.written.items() for word in (_bytes(name), value)),
                deadline=deadline,
            )
        finally:
            self._renewal.drop(claim)
        if answer == b"full":
            raise StoreFullError(
                f"Trajectory {claim.key.trajectory_id!r} would have {int(rest[0])} bytes of state and results, and "
                f"max_trajectory_bytes is {self._settings.max_trajectory_bytes}: keep less, or raise it."
            )
        if answer == b"stale":
            raise StaleClaimError(
                f"The claim on {claim.tool!r} for trajectory {claim.key.trajectory_id!r} was lost to another server or "
                "to the end of the trajectory: what was done does not count. Begin the call again."
            )
        if finishes:
            self._cache.forget(claim.key.trajectory_id)
        elif answer == b"repeated":
            # What took effect is what was sent first.
            self._cache.drop(claim.key.trajectory_id, claim.tool)
        elif changes:
            self._remember(claim, change)

    async def release(self, claim: Claim, *, deadline: float) -> None:
        """Let a claim go: nothing of the call took effect, and whoever repeats it does it anew."""
        self._renewal.drop(claim)
        if claim.token:
            await self._run(RELEASE, claim.key.trajectory_id, _field(claim), claim.token, deadline=deadline)

    async def renew(self, claim: Claim, *, deadline: float) -> None:
        """Make a claim last for another lease from here on; StaleClaimError if it is lost."""
        arguments = (_field(claim), claim.token, _microseconds(self._settings.lease_seconds))
        if claim.token and not await self._run(RENEW, claim.key.trajectory_id, *arguments, deadline=deadline):
            raise StaleClaimError(
                f"The claim on {claim.tool!r} for trajectory {claim.key.trajectory_id!r} was lost: begin again."
            )

    async def finish(self, trajectory_id: str, *, deadline: float) -> None:
        """Forget all state of a trajectory and fence off the calls in progress.

        What calls did stays for `finished_seconds`, so that a late repeat gets its result and starts nothing anew; a
        call with a new id, or with none, begins with empty state. For a call that is claimed itself, use `commit`
        with `finishes`.
        """
        arguments = (secrets.token_hex(8), self._expiry_ms(finished=True))
        await self._run(FINISH, trajectory_id, *arguments, deadline=deadline)
        self._cache.forget(trajectory_id)

    async def delete(self, trajectory_id: str, *, deadline: float) -> None:
        """Delete a trajectory with all it did, as if it had never been."""
        await self._run(DELETE, trajectory_id, deadline=deadline)

    async def count(self, *, deadline: float) -> int:
        """How many trajectories the store knows, in flight or finished a short while ago."""
        return len({key async for key in self._client.scan(self._keys.every_trajectory, deadline=deadline)})

    async def ping(self, *, deadline: float) -> None:
        """Return if the store answers."""
        await self._client.command("PING", deadline=deadline)

    async def info(self, *, deadline: float) -> Mapping[str, Any]:
        """What Redis tells of itself, in its own words."""
        told: Mapping[str, Any] = await self._client.command("INFO", deadline=deadline)
        return told

    async def close(self) -> None:
        """Close the connections; claims that are held run out by themselves."""
        await self._renewal.close()
        await self._client.close()

    @property
    def num_retries(self) -> int:
        """How often an operation was tried again because the store did not answer."""
        return self._client.retries

    async def _run(self, script: scripts.Script, trajectory_id: str, *arguments: Any, deadline: float) -> Any:
        return await self._client.run(script, self._keys.trajectory(trajectory_id), *arguments, deadline=deadline)

    async def _ask_for_claim(
        self, key: CallKey, tool: str, stateful: bool, holder: str, deadline: float
    ) -> "Claim | Recorded | _Held":
        cached = self._cache.version(key.trajectory_id, tool) if stateful else 0
        answer, *rest = await self._run(
            BEGIN,
            key.trajectory_id,
            *_call(key, tool, stateful),
            _microseconds(self._settings.lease_seconds),
            holder,
            cached,
            self._expiry_ms(),
            deadline=deadline,
        )
        if answer == b"gone":
            raise StaleClaimError(
                f"Trajectory {key.trajectory_id!r} was finished while call {key.call_id!r} was in progress: "
                "it is not done any more. Send a call with another call_id."
            )
        if answer == b"recorded":
            return Recorded(rest[0])
        if answer == b"held":
            return _Held(left_seconds=int(rest[0]) / 1e6)
        return self._claimed(key, tool, stateful, rest)

    def _claimed(self, key: CallKey, tool: str, stateful: bool, rest: list[Any]) -> Claim:
        token, version, taken_over, parts = int(rest[0]), int(rest[1]), int(rest[2]), rest[3]
        self.num_taken_over += taken_over
        state = _NOTHING
        if version:
            cached = self._cache.get(key.trajectory_id, tool, version)
            if cached is None:
                pairs = zip(parts[::2], parts[1::2], strict=True)
                cached = MappingProxyType({_text(name): value for name, value in pairs})
                self._cache.put(key.trajectory_id, tool, version, cached)
            state = cached
        claim = Claim(key, tool, token, state, stateful, version)
        self._renewal.add(claim)
        return claim

    async def _renew_in_time(self, claim: Claim) -> None:
        loop = asyncio.get_running_loop()
        await self.renew(claim, deadline=loop.time() + self._settings.lease_seconds)

    def _remember(self, claim: Claim, change: Change) -> None:
        """Keep the state that a commit wrote: its version is the claim's token."""
        state = {} if change.forget else {k: v for k, v in claim.state.items() if k not in change.removed}
        state.update(change.written)
        self._cache.put(claim.key.trajectory_id, claim.tool, claim.token, MappingProxyType(state))

    def _expiry_ms(self, *, finished: bool = False) -> int:
        seconds = self._settings.finished_seconds if finished else self._settings.expiry_seconds
        return max(1, round(seconds * 1000))


def _call(key: CallKey, tool: str, stateful: bool) -> tuple[str, str, bytes, str]:
    return tool, _flag(key.call_id is not None), _bytes(key.call_id or ""), _flag(stateful)


def _field(claim: Claim) -> bytes:
    """Where the scripts keep a claim, see `scripts/trajectory.lua`."""
    return _bytes(f"lock {claim.tool}" if claim.stateful else f"claim {claim.key.call_id}")


def _bytes(name: str) -> bytes:
    # Names of files and ids from JSON may hold halves of surrogate pairs.
    return name.encode(errors="surrogatepass")


def _text(name: bytes) -> str:
    return name.decode(errors="surrogatepass")


def _flag(value: bool) -> str:
    return "1" if value else "0"


def _microseconds(seconds: float) -> int:
    return max(1, round(seconds * 1e6))
