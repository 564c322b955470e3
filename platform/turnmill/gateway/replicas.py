"""Trajectories of a gateway with replicas: each has its turns in the trajectory store, and any replica continues it."""

import asyncio
from collections.abc import Callable, Sequence

from turnmill.core.errors import OtherTurnsError
from turnmill.core.trajectory import TrajectoryMetadata, Turn
from turnmill.gateway.answers import Answer, AnswerRequest
from turnmill.gateway.errors import UnavailableError
from turnmill.gateway.trajectory import Model, Trajectory
from turnmill.trajectories.client import StoreClient, deadline_in
from turnmill.trajectories.journal import JournaledTrajectory, TrajectoryJournal
from turnmill.trajectories.request_claims import RequestClaim, RequestClaims
from turnmill.trajectories.settings import StoreSettings

STORE_SECONDS = 10.0
MAX_CACHED_TOKENS = 5_000_000
"""Tokens of the trajectories that a replica keeps in memory, some 350 MB."""

OnRecorded = Callable[[Turn], None]


class SharedTrajectory:
    """One trajectory in the store, whose requests other replicas may answer, too."""

    def __init__(
        self, journal: TrajectoryJournal, claims: RequestClaims, opened: JournaledTrajectory, on_recorded: OnRecorded
    ) -> None:
        self._journal = journal
        self._claims = claims
        self._opened = opened
        self._on_recorded = on_recorded

    async def append(self, turn: Turn) -> None:
        """Add a turn. Raises StaleClaimError if another replica has the journal."""
        self._opened = await self._journal.append(self._opened, turn, deadline=deadline_in(STORE_SECONDS))
        self._on_recorded(turn)

    async def take_over(self, known: Sequence[Turn]) -> Sequence[Turn]:
        """Take the journal from another replica; return all turns.

        Raises StaleClaimError for an earlier attempt at the run, and OtherTurnsError.
        """
        self._opened = await self._journal.open(self._opened.name, known=known, deadline=deadline_in(STORE_SECONDS))
        return self._opened.turns

    async def claim(self, digest: str, known: Sequence[Turn]) -> tuple[RequestClaim, Sequence[Turn]]:
        """Claim a request by its digest; return the claim and all turns. Raises StoreError."""
        name, deadline = self._opened.name, deadline_in(STORE_SECONDS)
        claim = await self._claims.claim(name, digest, deadline=deadline)
        if claim.num_turns <= len(known):
            return claim, known
        found = await self._journal.read(name, known=known, deadline=deadline)
        return claim, found.turns if found is not None else known

    def release(self, claim: RequestClaim) -> None:
        """Let others claim a request."""
        self._claims.release(claim)


class StoreTrajectories:
    """The trajectories of one replica; a key that nobody has used begins one."""

    def __init__(
        self,
        model: Model,
        url: str,
        run: str,
        *,
        settings: StoreSettings | None = None,
        attempt: int | None = None,
        max_turns: int | None = None,
        on_recorded: OnRecorded = lambda turn: None,
    ) -> None:
        """Take the URL of the store and the name under which its trajectories lie there.

        `on_recorded` gets each turn that this replica has recorded.
        """
        self.model = model
        settings = settings or StoreSettings()
        self._client = StoreClient(url, max_connections=settings.max_connections)
        self._journal = TrajectoryJournal(self._client, run, settings, attempt=attempt)
        self._claims = RequestClaims(self._client, run, settings)
        self._max_turns = max_turns
        self._on_recorded = on_recorded
        self._opening: dict[str, asyncio.Task[Trajectory]] = {}
        self._cached: dict[str, Trajectory] = {}
        self._num_tokens: dict[str, int] = {}
        """Tokens of cached trajectories when they were last used, in the order of that."""

        self._num_cached_tokens = 0

    async def answer(self, key: str, request: AnswerRequest) -> list[Answer]:
        """Return the answers to a request. Raises StaleClaimError for an earlier attempt at the run."""
        trajectory = await self.find(key)
        try:
            return await trajectory.answer(request)
        except OtherTurnsError as error:
            self._forget(key)
            raise UnavailableError(str(error)) from error
        finally:
            self._count(key, trajectory)

    async def find(self, key: str) -> Trajectory:
        """Return the trajectory with a key, with the turns of all replicas."""
        if (cached := self._cached.get(key)) is not None:
            return cached
        opening = self._opening.get(key)
        if opening is None:
            opening = self._opening[key] = asyncio.create_task(self._open(key))
            opening.add_done_callback(lambda _: self._opening.pop(key))
        return await asyncio.shield(opening)

    async def close(self) -> None:
        """Close the connections, and let other replicas take what is being answered."""
        await self._claims.close()
        await self._client.close()

    async def _open(self, key: str) -> Trajectory:
        metadata = TrajectoryMetadata(trajectory_id=key)
        opened = await self._journal.open(key, metadata=metadata, deadline=deadline_in(STORE_SECONDS))
        shared = SharedTrajectory(self._journal, self._claims, opened, self._on_recorded)
        trajectory = self._cached[key] = Trajectory(
            key, self.model, record=shared.append, turns=opened.turns, max_turns=self._max_turns, shared=shared
        )
        return trajectory

    def _count(self, key: str, used: Trajectory) -> None:
        """Count the tokens of a trajectory, and forget idle ones, oldest first, until the others fit into memory."""
        # Another one may have been opened in its place.
        if self._cached.get(key) is used:
            self._num_cached_tokens += used.num_tokens - self._num_tokens.pop(key, 0)
            self._num_tokens[key] = used.num_tokens
        if self._num_cached_tokens <= MAX_CACHED_TOKENS:
            return
        for oldest in list(self._num_tokens):
            if not self._cached[oldest].is_answering:
                self._forget(oldest)
            if self._num_cached_tokens <= MAX_CACHED_TOKENS:
                return

    def _forget(self, key: str) -> None:
        self._cached.pop(key, None)
        self._num_cached_tokens -= self._num_tokens.pop(key, 0)
