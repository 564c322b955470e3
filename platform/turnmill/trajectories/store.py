"""The trajectory store: tool state and results of calls, each call taking effect exactly once."""

import asyncio
import secrets
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

from turnmill.core.errors import CallInProgressError, StaleClaimError, StoreFullError
from turnmill.trajectories import scripts
from turnmill.trajectories.base import CallKey, Change, Claim, Recorded, State, version_of
from turnmill.trajectories.claim_renewer import ClaimRenewer
from turnmill.trajectories.claim_watch import ClaimWatch, Held
from turnmill.trajectories.client import StoreClient
from turnmill.trajectories.connections import Argument
from turnmill.trajectories.keys import CALLS, Keys, state_suffix
from turnmill.trajectories.refusals import refusal
from turnmill.trajectories.script_arguments import (
    call_arguments,
    claim_field,
    flag,
    microseconds,
    to_bytes,
    to_text,
    version_arguments,
)
from turnmill.trajectories.settings import StoreSettings
from turnmill.trajectories.state_cache import StateCache

BEGIN = scripts.load("begin", prelude="trajectory")
COMMIT = scripts.load("commit", prelude="trajectory")
RELEASE = scripts.load("release", prelude="trajectory", allow_oom=True)
RENEW = scripts.load("renew", prelude="trajectory", allow_oom=True)
FINISH = scripts.load("finish", prelude="trajectory", allow_oom=True)
DELETE = scripts.load("delete", prelude="trajectory", allow_oom=True)

FIRST_WAIT_SECONDS = 0.002
MAX_WAIT_SECONDS = 0.05
ANSWER_SECONDS = 0.25
"""Remaining time below which a waiting call does not ask again, as a missing answer would look like a failed store."""

_NOTHING: State = MappingProxyType({})
_NO_CHANGE = Change()


class TrajectoryStore:
    """The trajectories of one run, for any number of servers at once.

    A call is begun, executed and committed:

        begun = await store.begin(key, "bash_terminal", stateful=True, deadline=deadline)
        if isinstance(begun, Recorded):
            return begun.result
        result, change = ...    # with begun.state
        await store.commit(begun, result, change, deadline=deadline)

    or released, if nothing of it took effect. Deadlines are in the event loop's time. Until then every operation is
    retried, and the caller may also send it again: all are idempotent. At the deadline they raise
    StoreUnavailableError, or CallInProgressError if another claim is held.
    """

    def __init__(self, client: StoreClient, run: str, settings: StoreSettings | None = None) -> None:
        self._client = client
        self._keys = Keys(run)
        self._settings = settings or StoreSettings()
        self._cache = StateCache(self._settings.cache_bytes)
        self._watch = ClaimWatch(self._settings.lease_seconds)
        self._renewal = ClaimRenewer(self._renew_in_time, self._settings.lease_seconds, self._settings.max_call_seconds)
        self.num_taken_over = 0
        """Number of expired claims of other servers that this one took over."""

    @classmethod
    def from_url(cls, url: str, run: str, settings: StoreSettings | None = None) -> Self:
        """Create a store with its own connections; `close` closes them."""
        settings = settings or StoreSettings()
        return cls(StoreClient(url, max_connections=settings.max_connections), run, settings)

    async def begin(self, key: CallKey, tool: str, *, stateful: bool = True, deadline: float) -> Claim | Recorded:
        """Claim a call and return the tool's state, or return the recorded result of a call that was executed before.

        If another server executes the call, or an earlier call on the same stateful tool, this waits for its end or
        the end of its lease. The claim is renewed in the background until it is committed or released: one must follow.
        Raises LostWriteError if the store no longer has the version `key.after`.
        """
        if not stateful and key.call_id is None:
            # The call is never repeated and has no state: the store is not needed.
            return Claim(key, tool, 0, _NOTHING, stateful=False)
        loop = asyncio.get_running_loop()

        def require_time(seconds: float) -> None:
            if loop.time() + seconds + ANSWER_SECONDS >= deadline:
                raise CallInProgressError(
                    f"Another call of {tool!r} is in progress for trajectory {key.trajectory_id!r}, "
                    "beyond this call's deadline: send it again later."
                )

        holder, wait_seconds, expired, token = secrets.token_hex(8), FIRST_WAIT_SECONDS, "", 0
        try:
            while True:
                begun = await self._try_claim(key, tool, stateful, holder, expired, deadline)
                if not isinstance(begun, Held):
                    self._watch.forget(expired)
                    token = begun.token if isinstance(begun, Claim) else 0
                    return begun
                if left_seconds := self._watch.wait_seconds(holder, begun):
                    pause = min(wait_seconds, left_seconds)
                    require_time(pause)
                    await asyncio.sleep(pause)
                    wait_seconds = min(wait_seconds * 1.5, MAX_WAIT_SECONDS)
                # On a busy machine a pause may take much longer.
                require_time(0)
                expired = "" if self._watch.wait_seconds(holder, begun) else begun.stamp
        finally:
            self._watch.one_by_one.begun(holder, token)

    async def commit(
        self,
        claim: Claim,
        result: bytes,
        change: Change | None = None,
        *,
        finishes: bool = False,
        deadline: float,
    ) -> None:
        """Record a call's result and change the tool's state, both or neither, and release the claim.

        With `finishes` the call ends its trajectory, and all its state is deleted with the same commit. Raises
        StaleClaimError if another server has taken the call over or the trajectory was finished: nothing took effect.
        """
        if claim.token == 0:
            if finishes:
                await self.finish(claim.key.trajectory_id, deadline=deadline)
            return
        change = change or _NO_CHANGE
        changes = bool(change.forget or change.written or change.removed)
        if changes and not claim.stateful:
            raise ValueError(f"Tool {claim.tool!r} changes state: its calls must begin with stateful=True.")
        removed = change.removed_from(claim.state)
        try:
            answer, *rest = await self._run(
                COMMIT,
                claim.key.trajectory_id,
                *call_arguments(claim.key, claim.tool, claim.stateful),
                claim.token,
                result,
                flag(finishes),
                self._expiry_ms(finished=finishes),
                self._settings.max_trajectory_bytes,
                flag(changes),
                len(removed),
                claim.key.digest,
                *map(to_bytes, removed),
                *(word for name, value in change.written.items() for word in (to_bytes(name), value)),
                tools=(claim.tool,),
                deadline=deadline,
            )
        finally:
            self._drop(claim)
        if answer == b"full":
            raise StoreFullError(
                f"Trajectory {claim.key.trajectory_id!r} would have {int(rest[0])} bytes of state and results, and "
                f"max_trajectory_bytes is {self._settings.max_trajectory_bytes}: keep less, or raise it."
            )
        if answer == b"stale":
            raise StaleClaimError(
                f"The claim on {claim.tool!r} for trajectory {claim.key.trajectory_id!r} was lost to another server or "
                "to the end of the trajectory: its effects do not count. Begin the call again."
            )
        if finishes:
            self._cache.forget(claim.key.trajectory_id)
        elif answer == b"repeated":
            # Only the first commit took effect.
            self._cache.drop(claim.key.trajectory_id, claim.tool)
        elif changes:
            self._cache_state(claim, change)

    async def release(self, claim: Claim, *, deadline: float) -> None:
        """Release a claim: nothing of the call took effect, and a repeat executes it again."""
        self._drop(claim)
        if claim.token:
            await self._run(RELEASE, claim.key.trajectory_id, claim_field(claim), claim.token, deadline=deadline)

    async def renew(self, claim: Claim, *, deadline: float) -> None:
        """Renew a claim for another lease. Raises StaleClaimError if it is lost."""
        arguments = (claim_field(claim), claim.token, microseconds(self._settings.lease_seconds))
        if claim.token and not await self._run(RENEW, claim.key.trajectory_id, *arguments, deadline=deadline):
            raise StaleClaimError(
                f"The claim on {claim.tool!r} for trajectory {claim.key.trajectory_id!r} was lost: begin again."
            )

    async def finish(self, trajectory_id: str, *, deadline: float) -> None:
        """Delete all state of a trajectory and fence off the calls in progress.

        Results of calls are kept for `finished_seconds`, so that a late repeat gets its result instead of being
        executed again; a call with a new id, or with none, begins with empty state. From within a claimed call, use
        `commit` with `finishes`.
        """
        arguments = (secrets.token_hex(8), self._expiry_ms(finished=True))
        await self._run(FINISH, trajectory_id, *arguments, tools=(), deadline=deadline)
        self._cache.forget(trajectory_id)

    async def delete(self, trajectory_id: str, *, deadline: float) -> None:
        """Delete a trajectory with its state and results."""
        await self._run(DELETE, trajectory_id, tools=(), deadline=deadline)

    async def count(self, *, deadline: float) -> int:
        """Return the number of trajectories in the store, in flight or recently finished."""
        return len({key async for key in self._client.scan(self._keys.every_trajectory, deadline=deadline)})

    async def ping(self, *, deadline: float) -> None:
        """Check that the store answers. Raises StoreUnavailableError."""
        await self._client.command("PING", deadline=deadline)

    async def info(self, *, deadline: float) -> Sequence[Mapping[str, Any]]:
        """Return the fields of Redis' INFO, of each server that holds keys."""
        return await self._client.info(deadline=deadline)

    async def close(self) -> None:
        """Close the connections; held claims expire."""
        await self._renewal.close()
        await self._client.close()

    @property
    def num_retries(self) -> int:
        """Number of operations that were retried because the store did not answer."""
        return self._client.retries

    async def _run(
        self,
        script: scripts.Script,
        trajectory_id: str,
        *arguments: Argument,
        tools: Collection[str] | None = None,
        deadline: float,
    ) -> Any:
        """Run a script on a trajectory's claims and, unless `tools` is None, on its records and these tools' state."""
        key = self._keys.trajectory(trajectory_id)
        while True:
            also = () if tools is None else (CALLS, *map(state_suffix, tools))
            answer = await self._client.run(script, key, *arguments, also=also, deadline=deadline)
            if tools is None or not isinstance(answer, list) or answer[0] != b"tools":
                return answer
            # These have state as well, which it is about to delete.
            tools = {*tools, *map(to_text, answer[1:])}

    async def _try_claim(
        self, key: CallKey, tool: str, stateful: bool, holder: str, expired: str, deadline: float
    ) -> Claim | Recorded | Held:
        # Kept until the answer: by then the cache may have evicted it, and the answer has no state of this version.
        cached, state = (self._cache.get(key.trajectory_id, tool) if stateful else None) or (0, _NOTHING)
        answer, *rest = await self._run(
            BEGIN,
            key.trajectory_id,
            *call_arguments(key, tool, stateful),
            microseconds(self._settings.lease_seconds),
            holder,
            cached,
            self._expiry_ms(),
            expired,
            key.digest,
            *version_arguments(key.after),
            tools=(tool,),
            deadline=deadline,
        )
        if answer == b"recorded":
            return Recorded(rest[0], version_of(int(rest[1]), key.call_id or "") if stateful else "")
        if answer == b"held":
            return Held(rest[0].decode(), int(rest[1]))
        if answer != b"claimed":
            raise refusal(key, answer, rest)
        token, version, taken_over, parts = int(rest[0]), int(rest[1]), int(rest[2]), rest[3]
        self.num_taken_over += taken_over
        if version != cached:
            pairs = zip(parts[::2], parts[1::2], strict=True)
            state = MappingProxyType({to_text(name): value for name, value in pairs})
            self._cache.put(key.trajectory_id, tool, version, state)
        claim = Claim(key, tool, token, state, stateful, version)
        self._renewal.add(claim)
        return claim

    def _drop(self, claim: Claim) -> None:
        self._renewal.drop(claim)
        self._watch.one_by_one.end(claim.token)

    async def _renew_in_time(self, claim: Claim) -> None:
        loop = asyncio.get_running_loop()
        await self.renew(claim, deadline=loop.time() + self._settings.lease_seconds)

    def _cache_state(self, claim: Claim, change: Change) -> None:
        """Cache the state that a commit wrote; its version is the claim's token."""
        self._cache.put(claim.key.trajectory_id, claim.tool, claim.token, change.applied_to(claim.state))

    def _expiry_ms(self, *, finished: bool = False) -> int:
        seconds = self._settings.finished_seconds if finished else self._settings.expiry_seconds
        return max(1, round(seconds * 1000))
