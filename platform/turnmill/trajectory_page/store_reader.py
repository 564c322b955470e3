"""Reader of the trajectories in a trajectory store: in flight, or ended and not yet expired."""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from turnmill.core.trajectory import Turn, complete_turns
from turnmill.observability.trajectory_log import TurnPosition, TurnRecord
from turnmill.trajectories.address import with_password
from turnmill.trajectories.client import StoreClient, deadline_in
from turnmill.trajectories.journal import JournaledTrajectory, TrajectoryJournal
from turnmill.trajectories.keys import JOURNALS_OF_ANY_RUN, TURNS, Keys, run_and_name
from turnmill.trajectory_page.index import Index
from turnmill.trajectory_page.summary import IN_FLIGHT, Summary

STORE_SECONDS = 5.0
MAX_CONCURRENT_READS = 32
PREFIX = "live/"


@dataclass(frozen=True, slots=True)
class SeenTrajectory:
    """A trajectory when it was last read."""

    version: tuple[object, ...]
    """Version that changes with every write."""

    finished: bool
    summary: Summary


class StoreReader:
    """Reads the journals of one run, or of every run in a store; fetches only trajectories that have changed."""

    def __init__(self, url: str, *, run: str | None = None, include_finished: bool) -> None:
        self._url = with_password(url)
        self._run = run
        self._finished_too = include_finished
        self._seen: dict[tuple[str, str], SeenTrajectory] = {}
        self._to_text: dict[tuple[str, str], SeenTrajectory] | None = None

    def update(self, index: Index) -> bool:
        """Update the index; return True if anything has changed. Raises StoreUnavailableError."""
        asyncio.run(self._refresh())
        # Also write what an earlier update read before it failed, and an empty list over another reader's rows.
        if self._seen == self._to_text:
            return False
        shown = [seen.summary for seen in self._seen.values() if self._finished_too or not seen.finished]
        index.replace_in_flight(shown)
        self._to_text = dict(self._seen)
        return True

    def read(self, run: str, name: str) -> list[TurnRecord] | None:
        """Return the turns of a trajectory; None if it no longer exists. Raises StoreUnavailableError."""
        trajectory = asyncio.run(self._read(run, name))
        return None if trajectory is None else turn_records(trajectory)

    async def _read(self, run: str, name: str) -> JournaledTrajectory | None:
        journal = TrajectoryJournal.from_url(self._url, run)
        try:
            return await journal.read(name, deadline=deadline_in(STORE_SECONDS))
        finally:
            await journal.close()

    async def _refresh(self) -> None:
        client = StoreClient(self._url)
        try:
            pattern = Keys(self._run).every_journal if self._run else JOURNALS_OF_ANY_RUN
            keys = {key async for key in client.scan(pattern, deadline=deadline_in(STORE_SECONDS))}
            found = dict.fromkeys(run_and_name(key.decode()) for key in sorted(keys))
            self._seen = {known: seen for known, seen in self._seen.items() if known in found}
            # Trajectories that have ended do not change.
            asked = [known for known in found if known not in self._seen or not self._seen[known].finished]
            for start in range(0, len(asked), MAX_CONCURRENT_READS):
                await asyncio.gather(
                    *(self._refresh_trajectory(client, *known) for known in asked[start : start + MAX_CONCURRENT_READS])
                )
        finally:
            await client.close()

    async def _refresh_trajectory(self, client: StoreClient, run: str, name: str) -> None:
        deadline, key = deadline_in(STORE_SECONDS), Keys(run).journal(name)
        fields = await client.command("HMGET", key, "updated", "attempt", "finished", deadline=deadline)
        version = (*fields, await client.command("LLEN", key + TURNS, deadline=deadline))
        seen = self._seen.get((run, name))
        if seen is not None and seen.version == version:
            return
        trajectory = await TrajectoryJournal(client, run).read(name, deadline=deadline)
        if trajectory is not None:
            self._seen[run, name] = SeenTrajectory(version, trajectory.finished, _summary(run, trajectory))


def key_of(run: str, name: str) -> str:
    """Return the key of a trajectory's page."""
    return f"{PREFIX}{run}/{name}"


def _summary(run: str, trajectory: JournaledTrajectory) -> Summary:
    turns = complete_turns(trajectory.turns)
    key = key_of(run, trajectory.name)
    digest = hashlib.blake2b(key.encode("utf-8", errors="replace"), digest_size=7).digest()
    versions = [turn.policy_version for turn in turns] or [0]
    step = trajectory.metadata.step
    prompt = b"".join(token.to_bytes(4, "big") for turn in turns[:1] for token in turn.prompt_ids)
    return Summary(
        # Negative, as the ids of the log's trajectories count upwards.
        id=-int.from_bytes(digest, "big") - 1,
        key=key,
        run=run,
        kind=IN_FLIGHT,
        name=trajectory.name,
        environment="",
        number=trajectory.metadata.task,
        task=hashlib.blake2b(prompt or key.encode("utf-8", errors="replace"), digest_size=8).digest(),
        first_step=step,
        last_step=step,
        first_version=min(versions),
        last_version=max(versions),
        turns=len(turns),
        tokens=sum(len(turn.response_ids) for turn in turns),
        reward=sum(turn.reward for turn in turns),
        seconds=sum(sum(turn.seconds.values()) for turn in turns),
        outcome="ended" if trajectory.finished else "in flight",
        reason=_reason(trajectory) if trajectory.finished else f"attempt {trajectory.attempt}",
        open=0 if trajectory.finished else 1,
    )


def _reason(trajectory: JournaledTrajectory) -> str:
    return trajectory.outcome.stop_reason if trajectory.outcome else "completed"


def turn_records(trajectory: JournaledTrajectory) -> list[TurnRecord]:
    """Return the turns of a trajectory as records of the log."""
    turns: Sequence[Turn] = complete_turns(trajectory.turns)
    return [_record(trajectory, number, turn, last=number == len(turns) - 1) for number, turn in enumerate(turns)]


def _record(trajectory: JournaledTrajectory, number: int, turn: Turn, *, last: bool) -> TurnRecord:
    ended = last and trajectory.finished
    metadata = trajectory.metadata
    return replace(
        TurnRecord.of(turn, TurnPosition(trajectory.name, metadata.task, number, metadata.step)),
        done=ended,
        stop_reason=_reason(trajectory) if ended else None,
        stop_detail=trajectory.outcome.detail if last and trajectory.outcome else "",
    )
