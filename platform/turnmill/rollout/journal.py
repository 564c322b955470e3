"""Journals: records of the turns of episodes in flight, kept outside the process that plays them."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from turnmill.core.errors import (
    InferenceError,
    NoTrajectoryError,
    OvertakenError,
    RunFailedError,
    StaleClaimError,
    StoreError,
    StoreUnavailableError,
    ToolCallConnectionError,
    ToolCallError,
    ToolCallTimeoutError,
)
from turnmill.core.trajectory import TrajectoryMetadata, TrajectoryOutcome, Turn
from turnmill.observability.run_folder import RunFolder
from turnmill.rollout.episode_id import EpisodeId
from turnmill.rollout.verl_types import RunConfig
from turnmill.tasks import Task
from turnmill.trajectories.address import with_password
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.journal import JournaledTrajectory, TrajectoryJournal

STORE_SECONDS, AGAIN_SECONDS, START_SECONDS = 10.0, 1.0, 60.0
"""Time for a write, for one after another that failed, and for what an attempt begins with."""

AWAY = frozenset(each.cause for each in (ToolCallConnectionError, ToolCallTimeoutError, ToolCallError, InferenceError))
"""Causes of failures at which another attempt can go on: a server was away."""

Write = Callable[..., Awaitable[JournaledTrajectory]]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResumedEpisode:
    """State with which an episode begins, or continues after a restart."""

    trajectory_id: str
    """Id of the trajectory at tool servers."""

    turns: Sequence[Turn] = ()
    """Turns that are in the journal."""


class EpisodeInFlight(Protocol):
    """An episode that is being played."""

    name: str
    step: int
    validate: bool
    trajectory_id: str
    task: Task


class Journal(Protocol):
    """Records the turns of episodes, by the name of the episode."""

    async def open(self, episode: EpisodeInFlight) -> ResumedEpisode:
        """Begin an episode, or resume it with the recorded turns."""
        ...

    async def append(self, episode: EpisodeInFlight, turn: Turn) -> None:
        """Record a finished turn."""
        ...

    async def finish(self, episode: EpisodeInFlight, outcome: TrajectoryOutcome) -> None:
        """Mark an episode as finished."""
        ...

    def is_resumable(self, episode: EpisodeInFlight) -> bool:
        """Return True if another process may resume an episode that this one no longer plays."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...


class NoJournal:
    """Records nothing: an episode in flight is lost with its process."""

    async def open(self, episode: EpisodeInFlight) -> ResumedEpisode:
        """Begin an episode from its first turn."""
        return ResumedEpisode(episode.trajectory_id)

    async def append(self, episode: EpisodeInFlight, turn: Turn) -> None:
        """Do nothing."""

    async def finish(self, episode: EpisodeInFlight, outcome: TrajectoryOutcome) -> None:
        """Do nothing."""

    def is_resumable(self, episode: EpisodeInFlight) -> bool:
        """Return False, as no other process knows the episode."""
        return False

    async def close(self) -> None:
        """Do nothing."""


class StoreJournal:
    """Records turns in the trajectory store.

    Every episode that the store has is resumed: an attempt begins by deleting those of policies that it does not have
    (`forget_newer_policies`). While the store cannot be reached, episodes continue, and what they could not write goes
    with the next turn; tools detect the failure themselves.
    """

    def __init__(self, journal: TrajectoryJournal) -> None:
        self._journal = journal
        self._trajectories: dict[str, JournaledTrajectory] = {}
        self._incomplete: set[str] = set()
        """Episodes with a missing turn or end in the store."""

        self._overtaken: set[str] = set()
        """Episodes that another process now plays."""

        self._interrupted: set[str] = set()
        """Episodes that failed as a server was away."""

        self._behind: set[str] = set()
        """Episodes whose last turns the store did not take in time."""

        self.num_resumed = 0
        self.num_failed_writes = 0

    async def open(self, episode: EpisodeInFlight) -> ResumedEpisode:
        """Begin an episode, or resume it with the recorded turns.

        Raises OvertakenError if a later attempt at the run has started.
        """
        await self._delete_incomplete()
        metadata = TrajectoryMetadata(episode.step, episode.task.number, episode.trajectory_id)
        deadline = deadline_in(STORE_SECONDS)
        try:
            if episode.name in self._incomplete:
                await self._journal.delete(episode.name, deadline=deadline)
            trajectory = await self._journal.open(episode.name, metadata=metadata, deadline=deadline)
        except StaleClaimError as error:
            self._overtaken.add(episode.name)
            raise OvertakenError(f"{episode.name} is not this attempt's: {error}") from error
        except StoreError as error:
            self._incomplete.add(episode.name)
            self._count_failed_write(episode, error)
            return ResumedEpisode(episode.trajectory_id)
        self._incomplete.discard(episode.name)
        self._overtaken.discard(episode.name)
        self._interrupted.discard(episode.name)
        self._trajectories[episode.name] = trajectory
        self.num_resumed += bool(trajectory.turns)
        return ResumedEpisode(trajectory.metadata.trajectory_id, trajectory.turns)

    async def append(self, episode: EpisodeInFlight, turn: Turn) -> None:
        """Record a finished turn. Raises OvertakenError if another process now plays the episode."""
        trajectory = self._trajectories.get(episode.name)
        if trajectory is None:
            await self._delete_incomplete()
            return
        seconds = AGAIN_SECONDS if episode.name in self._behind else STORE_SECONDS
        try:
            append = partial(self._journal.append, turn=turn)
            self._trajectories[episode.name] = await self._written(append, trajectory, seconds)
            self._behind.discard(episode.name)
        except StaleClaimError as error:
            del self._trajectories[episode.name]
            self._overtaken.add(episode.name)
            raise OvertakenError(f"{episode.name} is played elsewhere: {error}") from error
        except StoreUnavailableError as error:
            self._trajectories[episode.name] = trajectory.with_unsent(turn)
            self._behind.add(episode.name)
            self._count_failed_write(episode, error)
        except StoreError as error:
            # Recording later turns would leave a gap.
            del self._trajectories[episode.name]
            self._incomplete.add(episode.name)
            self._count_failed_write(episode, error)

    async def finish(self, episode: EpisodeInFlight, outcome: TrajectoryOutcome) -> None:
        """Mark an episode as finished, or delete it if it failed, so that it is repeated from its first turn.

        One that failed as a server was away stays: another attempt, if this one fails as well, goes on with it.
        """
        await self._delete_incomplete()
        trajectory = self._trajectories.pop(episode.name, None)
        self._behind.discard(episode.name)
        if trajectory is None or trajectory.finished:
            return
        if outcome.cause in AWAY:
            self._interrupted.add(episode.name)
            return
        try:
            if outcome.stop_reason == "failed":
                await self._journal.delete(episode.name, deadline=deadline_in(STORE_SECONDS))
            else:
                # Until its step has been trained, an attempt that resumes would else play it again.
                finish = partial(self._journal.finish, outcome=outcome, keep=True, deadline=deadline_in(STORE_SECONDS))
                await self._written(finish, trajectory, STORE_SECONDS)
        except StaleClaimError as error:
            self._overtaken.add(episode.name)
            self._count_failed_write(episode, error)
        except StoreError as error:
            self._incomplete.add(episode.name)
            self._count_failed_write(episode, error)

    async def _written(self, write: Write, trajectory: JournaledTrajectory, seconds: float) -> JournaledTrajectory:
        """Write, and return the trajectory; one that the store has lost as a whole is begun again, with its keys."""
        try:
            return await write(trajectory, deadline=deadline_in(seconds))
        except NoTrajectoryError as error:
            log.warning("Trajectory is begun again", extra={"trajectory": trajectory.name, "cause": str(error)})
        again = await self._journal.open(
            trajectory.name, metadata=trajectory.metadata, known=trajectory.turns, deadline=deadline_in(seconds)
        )
        return await write(again, deadline=deadline_in(seconds))

    def is_resumable(self, episode: EpisodeInFlight) -> bool:
        """Return True if the store has the episode as unfinished, or another process plays it."""
        places = self._trajectories, self._incomplete, self._overtaken, self._interrupted
        return any(episode.name in names for names in places)

    async def close(self) -> None:
        """Close the connections."""
        await self._journal.close()

    async def _delete_incomplete(self) -> None:
        """Delete incomplete episodes, which a later attempt would resume before turns that its tools have executed."""
        for name in list(self._incomplete):
            try:
                await self._journal.delete(name, deadline=deadline_in(AGAIN_SECONDS))
            except StaleClaimError:
                # The later attempt has taken it over.
                pass
            except StoreError:
                return
            self._incomplete.discard(name)

    def _count_failed_write(self, episode: EpisodeInFlight, error: StoreError) -> None:
        self.num_failed_writes += 1
        log.warning("Turns not recorded", extra={"trajectory": episode.name, "what": str(error)})


def create_journal(config: RunConfig) -> Journal:
    """Return the journal of this attempt at a run: in its store, or one without records if the run has no store."""
    journal = _journal_in_store(config)
    return NoJournal() if journal is None else StoreJournal(journal)


async def forget_newer_policies(config: RunConfig, version: int) -> None:
    """Delete episodes with turns of policies after the version with which this attempt begins.

    They are of an attempt that got further; this one's policies after that version are others. Raises RunFailedError if
    the store cannot be reached, as those episodes would be resumed.
    """
    journal = _journal_in_store(config)
    if journal is None:
        return
    try:
        if deleted := await journal.delete_newer(version, deadline=deadline_in(START_SECONDS)):
            log.info("Episodes of other policies deleted", extra={"episodes": deleted, "after_version": version})
    except StoreError as error:
        raise RunFailedError(str(error), "store") from error
    finally:
        await journal.close()


async def forget_trained(config: RunConfig, *, step: int, checkpoint: int, ahead: int) -> None:
    """Delete episodes up to a step which has been trained, but those that an attempt could resume.

    From a checkpoint it resumes training episodes of the next step, and of as many more as rollout is `ahead`; those of
    later ones were sampled by policies that it does not have. Raises StoreError.
    """
    journal = _journal_in_store(config)
    if journal is None:
        return
    deadline = deadline_in(STORE_SECONDS)
    try:
        for name in await journal.names(deadline=deadline):
            episode = EpisodeId.from_name(name)
            if episode is None or episode.step > step:
                continue
            if episode.validate or not checkpoint < episode.step <= checkpoint + 1 + ahead:
                await journal.delete(name, deadline=deadline)
    finally:
        await journal.close()


def _journal_in_store(config: RunConfig) -> TrajectoryJournal | None:
    settings = config.turnmill
    if (url := settings.get("store_url")) is None:
        return None
    run, attempt = RunFolder(settings.run_dir).run_name(), settings.get("attempt")
    return TrajectoryJournal.from_url(with_password(url), run, attempt=int(attempt) if attempt else None)
