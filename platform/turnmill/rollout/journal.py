"""What an agent loop keeps of its trajectories in flight outside its own process."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from turnmill.core.errors import OvertakenError, StaleClaimError, StoreError
from turnmill.core.trajectory import Turn
from turnmill.tasks import Task
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.journal import JournaledTrajectory, TrajectoryJournal

STORE_SECONDS, FORGET_SECONDS = 10.0, 1.0
TRAJECTORY = "trajectory_id"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Begun:
    """A trajectory as it goes on."""

    trajectory_id: str
    """What tool servers know it by."""

    turns: Sequence[Turn] = ()
    """Those that are there already."""


class InFlight(Protocol):
    """A trajectory while it is played."""

    name: str
    step: int
    validate: bool
    trajectory_id: str
    task: Task


class Journal(Protocol):
    """Turns of trajectories, by the name of the trajectory."""

    async def open(self, episode: InFlight) -> Begun:
        """Begin a trajectory, or take it over with the turns that are there."""
        ...

    async def append(self, episode: InFlight, turn: Turn) -> None:
        """Keep a finished turn."""
        ...

    async def finish(self, episode: InFlight, outcome: Mapping[str, Any]) -> None:
        """The trajectory is over."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class NoJournal:
    """Keeps nothing: a trajectory in flight is lost with its process."""

    async def open(self, episode: InFlight) -> Begun:
        """Nothing is there."""
        return Begun(episode.trajectory_id)

    async def append(self, episode: InFlight, turn: Turn) -> None:
        """Nothing is kept."""

    async def finish(self, episode: InFlight, outcome: Mapping[str, Any]) -> None:
        """Nothing is kept."""

    async def close(self) -> None:
        """Nothing is open."""


class StoreJournal:
    """Keeps turns in the trajectory store.

    Trajectories carry on in the first step of an attempt alone: those of later steps, left by an attempt that got
    further, were sampled from weights that this attempt does not have. A store that cannot be reached costs what would
    have been kept, and nothing else: tools notice it themselves.
    """

    def __init__(self, journal: TrajectoryJournal) -> None:
        self._journal = journal
        self._rollouts: dict[str, JournaledTrajectory] = {}
        self._behind: set[str] = set()
        """Trajectories that went on without being kept."""

        self._first_step: int | None = None
        self.num_carried_on = 0
        self.num_not_kept = 0

    async def open(self, episode: InFlight) -> Begun:
        """Begin a trajectory, or take it over with the turns that are there.

        Raises OvertakenError where a later attempt at the run has begun.
        """
        await self._forget_behind()
        if self._first_step is None and not episode.validate:
            self._first_step = episode.step
        try:
            if episode.validate or episode.step != self._first_step or episode.name in self._behind:
                await self._journal.delete(episode.name, deadline=deadline_in(STORE_SECONDS))
            rollout = await self._take_over_or_begin(episode)
        except StaleClaimError as error:
            raise OvertakenError(f"{episode.name} is not this attempt's: {error}") from error
        except StoreError as error:
            self._behind.add(episode.name)
            self._not_kept(episode, error)
            return Begun(episode.trajectory_id)
        self._behind.discard(episode.name)
        self._rollouts[episode.name] = rollout
        self.num_carried_on += bool(rollout.turns)
        return Begun(str(rollout.metadata[TRAJECTORY]), rollout.turns)

    async def _take_over_or_begin(self, episode: InFlight) -> JournaledTrajectory:
        deadline = deadline_in(STORE_SECONDS)
        rollout = await self._journal.open(episode.name, deadline=deadline)
        if rollout.turns:
            return rollout
        metadata = {"step": episode.step, "task": episode.task.number, TRAJECTORY: episode.trajectory_id}
        return await self._journal.open(episode.name, metadata=metadata, deadline=deadline)

    async def append(self, episode: InFlight, turn: Turn) -> None:
        """Keep a finished turn; raises OvertakenError where another process plays the trajectory now."""
        rollout = self._rollouts.get(episode.name)
        if rollout is None:
            await self._forget_behind()
            return
        try:
            self._rollouts[episode.name] = await self._journal.append(
                rollout, turn, deadline=deadline_in(STORE_SECONDS)
            )
        except StaleClaimError as error:
            del self._rollouts[episode.name]
            raise OvertakenError(f"{episode.name} is played elsewhere: {error}") from error
        except StoreError as error:
            # What follows would leave a gap.
            del self._rollouts[episode.name]
            self._behind.add(episode.name)
            self._not_kept(episode, error)

    async def finish(self, episode: InFlight, outcome: Mapping[str, Any]) -> None:
        """The trajectory is over."""
        await self._forget_behind()
        rollout = self._rollouts.pop(episode.name, None)
        if rollout is None or rollout.finished:
            return
        try:
            if outcome.get("stop_reason") == "failed":
                # What is tried again begins anew.
                await self._journal.delete(episode.name, deadline=deadline_in(STORE_SECONDS))
            else:
                await self._journal.finish(rollout, outcome, deadline=deadline_in(STORE_SECONDS))
        except StoreError as error:
            self._not_kept(episode, error)

    async def close(self) -> None:
        """Close the connections."""
        await self._journal.close()

    async def _forget_behind(self) -> None:
        """Delete what is there of trajectories that went on: a later attempt would carry on in the middle of them, with
        tools that have gone on as well."""
        for name in list(self._behind):
            try:
                await self._journal.delete(name, deadline=deadline_in(FORGET_SECONDS))
            except StaleClaimError:
                # It is the later attempt's.
                pass
            except StoreError:
                return
            self._behind.discard(name)

    def _not_kept(self, episode: InFlight, error: StoreError) -> None:
        self.num_not_kept += 1
        log.warning("Turns are not kept", extra={"trajectory": episode.name, "what": str(error)})
