"""The journal of rollouts: every finished turn, so that a trajectory in flight outlives the process that makes it."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import msgpack

from turnmill.core.errors import StaleClaimError, StoreFullError
from turnmill.core.trajectory import Turn
from turnmill.trajectories import scripts
from turnmill.trajectories.client import StoreClient
from turnmill.trajectories.keys import Keys
from turnmill.trajectories.packing import pack_turn, unpack_turn
from turnmill.trajectories.settings import StoreSettings

OPEN = scripts.load("journal_open")
APPEND = scripts.load("journal_append")
FINISH = scripts.load("journal_finish", allow_oom=True)
TAKE_RUN = scripts.load("run_take")


@dataclass(frozen=True, slots=True)
class Rollout:
    """One trajectory in the journal. Who opened it last may write; to everyone else its attempt number is stale."""

    name: str
    attempt: int
    turns: tuple[Turn, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    """What its writer told when it opened it, such as the task, the step or the seed."""

    outcome: Mapping[str, Any] | None = None
    """What its writer told when it finished it, such as the stop reason; None while it is in flight."""

    updated: int = 0
    """When it was written to last, in seconds since 1970 by the store's clock."""

    @property
    def finished(self) -> bool:
        """Whether it takes no further turns."""
        return self.outcome is not None


class RolloutJournal:
    """The rollouts of one run, by names that a restarted run finds again: step, prompt and sample, or the slot.

    An agent loop opens its rollout, gets the turns that are there, carries on after them, appends each turn when it
    is finished, and finishes the rollout:

        rollout = await journal.open(name, about={"task": task}, deadline=deadline_in(10))
        for turn in ...:    # after rollout.turns
            rollout = await journal.append(rollout, turn, deadline=deadline_in(10))
        await journal.finish(rollout, {"stop_reason": "completed"}, deadline=deadline_in(10))

    Every operation may be sent again: none takes effect twice. Each raises StoreUnavailableError at its deadline.

    Where attempts at the run are counted, `attempt` says which one this is: `take_run` makes those before it stale.
    """

    def __init__(
        self, client: StoreClient, run: str, settings: StoreSettings | None = None, *, attempt: int | None = None
    ) -> None:
        self._client = client
        self._run = run
        self._keys = Keys(run)
        self._settings = settings or StoreSettings()
        self._attempt = attempt

    @classmethod
    def from_url(cls, url: str, run: str, settings: StoreSettings | None = None, *, attempt: int | None = None) -> Self:
        """A journal with connections of its own; `close` closes them."""
        settings = settings or StoreSettings()
        return cls(StoreClient(url, max_connections=settings.max_connections), run, settings, attempt=attempt)

    async def take_run(self, *, deadline: float) -> None:
        """Make earlier attempts at the run stale: they open nothing more, and what they have open is taken from them.

        Raises StaleClaimError where a later attempt has done so.
        """
        assert self._attempt is not None
        newest = await self._client.run(
            TAKE_RUN, self._keys.attempt, self._attempt, self._milliseconds(finished=False), deadline=deadline
        )
        if int(newest) > self._attempt:
            raise self._stale(newest)
        for rollout in await self.live(deadline=deadline):
            await self.open(rollout.name, deadline=deadline)

    async def open(self, name: str, *, about: Mapping[str, Any] | None = None, deadline: float) -> Rollout:
        """Begin a rollout, or take it over with what it has: whoever had it open can no longer write.

        Without `about`, what was told before stays. Raises StaleClaimError for an older attempt at the run.
        """
        await self._require_newest(deadline)
        arguments = (
            secrets.token_hex(8),
            _packed(about) if about is not None else b"",
            self._milliseconds(finished=False),
            self._attempt or 0,
        )
        answer, *rest = await self._client.run(OPEN, self._keys.journal(name), *arguments, deadline=deadline)
        if answer != b"opened":
            raise self._stale(rest[0])
        fields, turns = rest
        return _rollout(name, dict(zip(fields[::2], fields[1::2], strict=True)), turns)

    async def append(self, rollout: Rollout, turn: Turn, *, deadline: float) -> Rollout:
        """Record the rollout's next turn; StaleClaimError where another attempt has opened it."""
        arguments = (rollout.attempt, len(rollout.turns), pack_turn(turn), self._milliseconds(finished=False))
        answer, *rest = await self._client.run(
            APPEND,
            self._keys.journal(rollout.name),
            *arguments,
            self._settings.max_trajectory_bytes,
            deadline=deadline,
        )
        if answer == b"full":
            raise StoreFullError(
                f"The journal of rollout {rollout.name!r} would have {int(rest[0])} bytes, "
                f"and max_trajectory_bytes is {self._settings.max_trajectory_bytes}: raise it, or play fewer turns."
            )
        if answer != b"recorded":
            raise _refusal(rollout, answer.decode(), rest)
        return replace(rollout, turns=(*rollout.turns, turn))

    async def finish(self, rollout: Rollout, outcome: Mapping[str, Any], *, deadline: float) -> Rollout:
        """Mark it finished: it stays readable for `finished_seconds` and then is gone."""
        arguments = (rollout.attempt, _packed(outcome), self._milliseconds(finished=True))
        answer, *rest = await self._client.run(FINISH, self._keys.journal(rollout.name), *arguments, deadline=deadline)
        if answer != b"finished":
            raise _refusal(rollout, answer.decode(), rest)
        return replace(rollout, outcome=outcome)

    async def read(self, name: str, *, deadline: float) -> Rollout | None:
        """A rollout as it is, left to whoever has it open; None where there is none."""
        key = self._keys.journal(name)
        fields = await self._client.command("HGETALL", key, deadline=deadline)
        if not fields:
            return None
        turns = await self._client.command("LRANGE", f"{key}:turns", 0, -1, deadline=deadline)
        return _rollout(name, fields, turns)

    async def names(self, *, deadline: float) -> list[str]:
        """Every rollout that is there, in flight or finished, in the order of their names."""
        found = {name async for name in self._client.scan(self._keys.every_rollout, deadline=deadline)}
        return sorted(self._keys.rollout_name(key.decode()) for key in found)

    async def live(self, *, deadline: float) -> list[Rollout]:
        """Every rollout in flight, with its turns."""
        rollouts = [await self.read(name, deadline=deadline) for name in await self.names(deadline=deadline)]
        return [rollout for rollout in rollouts if rollout is not None and not rollout.finished]

    async def forget(self, name: str, *, deadline: float) -> None:
        """Delete a rollout. Raises StaleClaimError for an older attempt at the run."""
        await self._require_newest(deadline)
        key = self._keys.journal(name)
        await self._client.command("UNLINK", key, f"{key}:turns", deadline=deadline)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _require_newest(self, deadline: float) -> None:
        if self._attempt is None:
            return
        expiry = self._milliseconds(finished=False)
        newest = await self._client.command("GETEX", self._keys.attempt, "PX", expiry, deadline=deadline)
        if int(newest or 0) > self._attempt:
            raise self._stale(newest)

    def _stale(self, newest: bytes | int) -> StaleClaimError:
        return StaleClaimError(
            f"Attempt {self._attempt} at run {self._run!r} is stale: attempt {int(newest)} has begun, "
            "and one alone may write."
        )

    def _milliseconds(self, *, finished: bool) -> int:
        seconds = self._settings.finished_seconds if finished else self._settings.expiry_seconds
        return max(1, round(seconds * 1000))


def _rollout(name: str, known: Mapping[bytes, bytes], turns: list[bytes]) -> Rollout:
    return Rollout(
        name=name,
        attempt=int(known[b"attempt"]),
        turns=tuple(unpack_turn(turn) for turn in turns),
        about=msgpack.unpackb(known[b"about"]) if b"about" in known else {},
        outcome=msgpack.unpackb(known[b"finished"]) if b"finished" in known else None,
        updated=int(known[b"updated"]),
    )


def _packed(value: Mapping[str, Any]) -> bytes:
    packed: bytes = msgpack.packb(dict(value))
    return packed


def _refusal(rollout: Rollout, answer: str, rest: list[bytes]) -> StaleClaimError:
    reason = {
        "stale": f"attempt {rest[0].decode()} has it open" if rest and rest[0] else "it has expired or was forgotten",
        "other": f"it has another turn {len(rollout.turns)}",
        "gap": f"it has {rest[0].decode()} turns" if rest else "turns are missing",
        "finished": "it is finished",
    }[answer]
    return StaleClaimError(
        f"Rollout {rollout.name!r} takes no turn {len(rollout.turns)} from attempt {rollout.attempt}: {reason}. "
        "Open it again to carry on from what is there."
    )
