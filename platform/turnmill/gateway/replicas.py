"""Trajectories of a gateway with replicas: each has its turns in the trajectory store, and any replica continues it."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from turnmill.core.trajectory import TrajectoryMetadata, Turn
from turnmill.gateway.answers import Answer, AnswerRequest
from turnmill.gateway.trajectory import Model, Trajectory
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.journal import JournaledTrajectory, TrajectoryJournal

STORE_SECONDS = 10.0
MAX_CACHED = 10_000


class SharedTurns:
    """The turns of one trajectory in the store, to which other replicas may add."""

    def __init__(self, journal: TrajectoryJournal, opened: JournaledTrajectory) -> None:
        self._journal = journal
        self._opened = opened

    async def append(self, turn: Turn) -> None:
        """Add a turn. Raises StaleClaimError if another replica has the trajectory."""
        self._opened = await self._journal.append(self._opened, turn, deadline=deadline_in(STORE_SECONDS))

    async def take_over(self, known: Sequence[Turn]) -> Sequence[Turn]:
        """Take the trajectory from another replica; return all turns.

        Raises StaleClaimError for an earlier attempt at the run.
        """
        opened = await self._journal.open(self._opened.name, deadline=deadline_in(STORE_SECONDS))
        if len(opened.turns) < len(known):
            # The store has lost some: they are stored again with the next one.
            opened = replace(opened, turns=tuple(known))
        self._opened = opened
        return opened.turns

    async def read(self) -> Sequence[Turn]:
        """Return the turns without taking the trajectory over."""
        found = await self._journal.read(self._opened.name, deadline=deadline_in(STORE_SECONDS))
        return found.turns if found is not None else ()


class StoreTrajectories:
    """The trajectories of one replica; a key that nobody has used begins one."""

    def __init__(self, model: Model, journal: TrajectoryJournal, *, max_turns: int | None = None) -> None:
        self.model = model
        self._journal = journal
        self._max_turns = max_turns
        self._cached: OrderedDict[str, Trajectory] = OrderedDict()

    async def answer(self, key: str, request: AnswerRequest) -> list[Answer]:
        """Return the answers to a request. Raises StaleClaimError for an earlier attempt at the run."""
        return await (await self.find(key)).answer(request)

    async def find(self, key: str) -> Trajectory:
        """Return the trajectory with a key, with the turns of all replicas."""
        if (cached := self._cached.get(key)) is not None:
            self._cached.move_to_end(key)
            return cached
        opened = await self._journal.open(key, deadline=deadline_in(STORE_SECONDS))
        if not opened.turns:
            metadata = TrajectoryMetadata(trajectory_id=key)
            opened = await self._journal.open(key, metadata=metadata, deadline=deadline_in(STORE_SECONDS))
        shared = SharedTurns(self._journal, opened)
        trajectory = Trajectory(
            key, self.model, record=shared.append, turns=opened.turns, max_turns=self._max_turns, shared=shared
        )
        # Another request may have opened it meanwhile: its claim is stale by now, so this one replaces it.
        self._cached[key] = trajectory
        while len(self._cached) > MAX_CACHED:
            self._cached.popitem(last=False)
        return trajectory

    async def close(self) -> None:
        """Close the connections."""
        await self._journal.close()
