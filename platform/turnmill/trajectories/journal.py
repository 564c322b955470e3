"""Journal of trajectories in flight: each turn is stored when it ends, so a restarted agent loop can resume."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from turnmill.core.errors import NoTrajectoryError, OtherTurnsError, StaleClaimError, StoreFullError
from turnmill.core.trajectory import TrajectoryMetadata, TrajectoryOutcome, Turn
from turnmill.trajectories import scripts
from turnmill.trajectories.client import StoreClient
from turnmill.trajectories.keys import REQUESTS, TURNS, Keys
from turnmill.trajectories.packing import pack, unpack
from turnmill.trajectories.settings import StoreSettings

OPEN = scripts.load("journal_open")
APPEND = scripts.load("journal_append")
READ = scripts.load("journal_read", allow_oom=True)
FINISH = scripts.load("journal_finish", allow_oom=True)
CLAIM_RUN = scripts.load("run_claim")


@dataclass(frozen=True, slots=True)
class JournaledTrajectory:
    """A trajectory in the journal. Only the process that opened it last may write; older attempts are stale."""

    name: str
    attempt: int
    opener: str = ""
    """Random id of the call of `open` that began this attempt: a store that loses writes gives a number twice."""

    turns: tuple[Turn, ...] = ()
    metadata: TrajectoryMetadata = field(default_factory=TrajectoryMetadata)
    """Metadata given to the first `open`."""

    outcome: TrajectoryOutcome | None = None
    """Outcome given to `finish`; None while the trajectory is in flight."""

    updated_at: int = 0
    """Time of the last write, in seconds since 1970 by the store's clock."""

    unsent: int = 0
    """Number of its last turns that go to the store with the next one, or with its end."""

    @property
    def finished(self) -> bool:
        """True if no further turn can be appended."""
        return self.outcome is not None

    def with_unsent(self, turn: Turn) -> Self:
        """Return the trajectory with a further turn, which goes to the store with the next one."""
        return replace(self, turns=(*self.turns, turn), unsent=self.unsent + 1)


class TrajectoryJournal:
    """The trajectories of one run, by a name that is the same after a restart: step, prompt and sample, or the slot.

    An agent loop opens its trajectory, gets the turns stored so far, carries on after them, appends each turn when it
    ends, and finishes the trajectory:

        trajectory = await journal.open(name, metadata=TrajectoryMetadata(step, task), deadline=deadline_in(10))
        for turn in ...:    # after trajectory.turns
            trajectory = await journal.append(trajectory, turn, deadline=deadline_in(10))
        await journal.finish(trajectory, TrajectoryOutcome("completed"), deadline=deadline_in(10))

    Every operation is idempotent and raises StoreUnavailableError at its deadline. Turns that the store has lost, in a
    power cut or a failover, are stored again by the next `append` or `finish` of the loop that has them.

    Where attempts at the run are numbered, `attempt` is this one's number: `claim_run` makes earlier ones stale.
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
        """Create a journal with its own connections; `close` closes them."""
        settings = settings or StoreSettings()
        return cls(StoreClient(url, max_connections=settings.max_connections), run, settings, attempt=attempt)

    async def claim_run(self, *, deadline: float) -> None:
        """Make earlier attempts at the run stale: they can open nothing, and lose the trajectories they have open.

        Raises StaleClaimError if a later attempt has claimed the run.
        """
        assert self._attempt is not None
        latest = await self._client.run(
            CLAIM_RUN, self._keys.attempt, self._attempt, self._milliseconds(finished=False), deadline=deadline
        )
        if int(latest) > self._attempt:
            raise self._stale(latest)
        for trajectory in await self.live(deadline=deadline):
            await self.open(trajectory.name, deadline=deadline)

    async def open(
        self,
        name: str,
        *,
        metadata: TrajectoryMetadata | None = None,
        known: Sequence[Turn] = (),
        deadline: float,
    ) -> JournaledTrajectory:
        """Begin a trajectory, or take it over with its turns: the process that had it open can no longer write.

        `metadata` is for a trajectory that begins: one that has metadata keeps it. Turns that are `known` are not read
        again; those of them that the store has lost are stored with the next one. Raises StaleClaimError for an earlier
        attempt at the run, and OtherTurnsError if the store has others than those known.
        """
        await self._require_latest_attempt(deadline)
        arguments = (
            secrets.token_hex(8),
            pack(metadata) if metadata is not None else b"",
            self._milliseconds(finished=False),
            self._attempt or 0,
            _first_to_read(known),
        )
        answer, *rest = await self._client.run(
            OPEN, self._keys.journal(name), *arguments, also=(TURNS,), deadline=deadline
        )
        if answer != b"opened":
            raise self._stale(rest[0])
        fields, turns = rest
        return _decode(name, fields, turns, known)

    async def append(self, trajectory: JournaledTrajectory, turn: Turn, *, deadline: float) -> JournaledTrajectory:
        """Store the trajectory's next turn, after those that are unsent.

        Raises StaleClaimError if another attempt has opened the trajectory, and NoTrajectoryError if there is none.
        """
        return await self._send(trajectory.with_unsent(turn), deadline)

    async def finish(
        self, trajectory: JournaledTrajectory, outcome: TrajectoryOutcome, *, keep: bool = False, deadline: float
    ) -> JournaledTrajectory:
        """Mark a trajectory finished: it can be read for `finished_seconds` and then expires.

        With `keep` it expires as one in flight, unless it is deleted before.
        """
        trajectory = await self._send(trajectory, deadline)
        arguments = (len(trajectory.turns), pack(outcome), self._milliseconds(finished=not keep))
        while True:
            answer, *rest = await self._write(FINISH, trajectory, *arguments, deadline=deadline)
            if answer == b"finished":
                return replace(trajectory, outcome=outcome)
            if answer != b"gap":
                raise _refusal(trajectory, answer.decode(), rest)
            await self._store_turns(trajectory, int(rest[0]), deadline)

    async def _send(self, trajectory: JournaledTrajectory, deadline: float) -> JournaledTrajectory:
        if trajectory.unsent:
            await self._store_turns(trajectory, len(trajectory.turns) - trajectory.unsent, deadline)
        return replace(trajectory, unsent=0)

    async def _store_turns(self, trajectory: JournaledTrajectory, number: int, deadline: float) -> None:
        """Store the turns from a number on, and those before it that the store has lost."""
        limit = self._settings.max_trajectory_bytes
        while True:
            expiry, turns = self._milliseconds(finished=False), map(pack, trajectory.turns[number:])
            answer, *rest = await self._write(APPEND, trajectory, number, expiry, limit, *turns, deadline=deadline)
            if answer == b"recorded":
                return
            if answer == b"full":
                raise StoreFullError(
                    f"The journal of trajectory {trajectory.name!r} would have {int(rest[0])} bytes, "
                    f"and max_trajectory_bytes is {limit}: raise it, or allow fewer turns."
                )
            if answer != b"gap":
                first = int(rest[0]) if answer == b"other" else number
                raise _refusal(replace(trajectory, turns=trajectory.turns[:first]), answer.decode(), rest)
            number = int(rest[0])

    async def _write(
        self, script: scripts.Script, trajectory: JournaledTrajectory, *arguments: bytes | int, deadline: float
    ) -> list[bytes]:
        key, claim = self._keys.journal(trajectory.name), (trajectory.attempt, trajectory.opener)
        answer: list[bytes] = await self._client.run(script, key, *claim, *arguments, also=(TURNS,), deadline=deadline)
        return answer

    async def read(self, name: str, *, known: Sequence[Turn] = (), deadline: float) -> JournaledTrajectory | None:
        """Return a trajectory without taking it over; None if there is none of this name.

        Turns that are `known` are not read again. Raises OtherTurnsError if the store has others.
        """
        fields, turns = await self._client.run(
            READ, self._keys.journal(name), _first_to_read(known), also=(TURNS,), deadline=deadline
        )
        return _decode(name, fields, turns, known) if fields else None

    async def names(self, *, deadline: float) -> list[str]:
        """Return the sorted names of all trajectories, in flight or finished."""
        found = {name async for name in self._client.scan(self._keys.every_journal, deadline=deadline)}
        return sorted(self._keys.trajectory_name(key.decode()) for key in found)

    async def live(self, *, deadline: float) -> list[JournaledTrajectory]:
        """Return the trajectories in flight, with their turns."""
        trajectories = [await self.read(name, deadline=deadline) for name in await self.names(deadline=deadline)]
        return [trajectory for trajectory in trajectories if trajectory is not None and not trajectory.finished]

    async def delete_newer(self, policy_version: int, *, deadline: float) -> int:
        """Delete the trajectories whose last turn is of a newer version of the policy, and return their number."""
        number = 0
        for name in await self.names(deadline=deadline):
            _, last = await self._client.run(READ, self._keys.journal(name), -1, also=(TURNS,), deadline=deadline)
            if last and unpack(Turn, last[0]).policy_version > policy_version:
                await self.delete(name, deadline=deadline)
                number += 1
        return number

    async def delete(self, name: str, *, deadline: float) -> None:
        """Delete a trajectory. Raises StaleClaimError for an earlier attempt at the run."""
        await self._require_latest_attempt(deadline)
        key = self._keys.journal(name)
        await self._client.command("UNLINK", key, key + TURNS, key + REQUESTS, deadline=deadline)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _require_latest_attempt(self, deadline: float) -> None:
        if self._attempt is None:
            return
        expiry = self._milliseconds(finished=False)
        latest = await self._client.command("GETEX", self._keys.attempt, "PX", expiry, deadline=deadline)
        if int(latest or 0) > self._attempt:
            raise self._stale(latest)

    def _stale(self, latest: bytes | int) -> StaleClaimError:
        return StaleClaimError(
            f"Attempt {self._attempt} at run {self._run!r} is stale: attempt {int(latest)} has begun, "
            "and only the latest attempt may write."
        )

    def _milliseconds(self, *, finished: bool) -> int:
        seconds = self._settings.finished_seconds if finished else self._settings.expiry_seconds
        return max(1, round(seconds * 1000))


def _first_to_read(known: Sequence[Turn]) -> int:
    # The last known one comes along: it tells whether those before are the same.
    return max(0, len(known) - 1)


def _decode(
    name: str, names_and_values: list[bytes], encoded: list[bytes], known: Sequence[Turn] = ()
) -> JournaledTrajectory:
    fields = dict(zip(names_and_values[::2], names_and_values[1::2], strict=True))
    turns = [unpack(Turn, turn) for turn in encoded]
    if known and turns and turns[0] != known[-1]:
        raise OtherTurnsError(
            f"The store has other turns of trajectory {name!r} than this process: it lost some, and another process "
            "went on without them. Open it anew, without those."
        )
    return JournaledTrajectory(
        name=name,
        attempt=int(fields[b"attempt"]),
        opener=fields.get(b"opener", b"").decode(),
        turns=(*known[:-1], *turns) if turns else tuple(known),
        metadata=unpack(TrajectoryMetadata, fields[b"about"]) if b"about" in fields else TrajectoryMetadata(),
        outcome=unpack(TrajectoryOutcome, fields[b"finished"]) if b"finished" in fields else None,
        updated_at=int(fields[b"updated"]),
    )


def _refusal(trajectory: JournaledTrajectory, answer: str, rest: list[bytes]) -> StaleClaimError:
    opener = rest[0].decode() if rest else ""
    is_gone = answer == "stale" and not opener
    reason = {
        "stale": "it has expired, or is deleted or lost" if is_gone else f"attempt {opener} has it open",
        "other": f"it has another turn {len(trajectory.turns)}",
        "finished": "it is finished",
    }[answer]
    return (NoTrajectoryError if is_gone else StaleClaimError)(
        f"Trajectory {trajectory.name!r} takes no turn {len(trajectory.turns)} from attempt {trajectory.attempt}: "
        f"{reason}. Open it again to carry on after the turns that are stored."
    )
