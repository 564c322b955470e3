"""Processes that play one trajectory with a journal, while its store fails and they take it over from each other.

Each turn tells which turn its process knew before it, and the outcome tells the last turn: a journal that has lost a
turn in between, or that has turns of two processes, has a gap.
"""

import itertools
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

from turnmill.core.errors import StaleClaimError, StoreError
from turnmill.core.trajectory import TrajectoryOutcome, Turn
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.journal import JournaledTrajectory, TrajectoryJournal

NUM_PROCESSES = 4
NUM_TURNS = 12
DEADLINE_SECONDS = 20.0


class JournalPlayer:
    """One trajectory and the processes that play it, each from where the one before it came to."""

    def __init__(self, name: str, urls: Sequence[str], chance: random.Random, losses: Callable[[], int | None]) -> None:
        self.problems: list[str] = []
        self.num_turns = 0
        """Turns that the store has acknowledged."""

        self._name = name
        self._urls = urls
        self._chance = chance
        self._losses = losses
        self._numbers = itertools.count()
        self._known: tuple[int | None, int] = (None, 0)
        """Number of losses at which so many turns had been acknowledged."""

    async def play(self) -> str:
        """Play until a process has finished the trajectory; return how it ended."""
        old: list[tuple[TrajectoryJournal, JournaledTrajectory]] = []
        ended = ""
        async with AsyncExitStack() as stack:
            for process in range(NUM_PROCESSES):
                journal = TrajectoryJournal.from_url(self._chance.choice(self._urls), "journals")
                stack.push_async_callback(journal.close)
                ended, trajectory = await self._process(journal, is_last=process == NUM_PROCESSES - 1)
                # Processes that were taken for dead carry on.
                for old_journal, stale in old:
                    await _answer(self._append(old_journal, stale))
                if trajectory is None:
                    break
                old.append((journal, trajectory))
        return ended

    async def _process(self, journal: TrajectoryJournal, *, is_last: bool) -> tuple[str, JournaledTrajectory | None]:
        """Play some turns or all; return the trajectory if it is left to the next process."""
        num_turns = NUM_TURNS if is_last else self._chance.randint(0, NUM_TURNS)
        before = self._losses()
        trajectory = await _answer(journal.open(self._name, deadline=deadline_in(DEADLINE_SECONDS)))
        if isinstance(trajectory, str):
            return trajectory, None
        self._check(trajectory, before)
        while not trajectory.finished and len(trajectory.turns) < num_turns:
            before = self._losses()
            grown = await _answer(self._append(journal, trajectory))
            if isinstance(grown, str):
                return grown, None
            trajectory = grown
            self._known = (before if before == self._losses() else None, len(trajectory.turns))
            self.num_turns += 1
        if not trajectory.finished:
            if not is_last and self._chance.random() < 0.7:
                return "journal left", trajectory
            outcome = TrajectoryOutcome("completed", _last(trajectory))
            finished = await _answer(journal.finish(trajectory, outcome, deadline=deadline_in(DEADLINE_SECONDS)))
            if isinstance(finished, str):
                return finished, None
        stored = await _answer(journal.read(self._name, deadline=deadline_in(DEADLINE_SECONDS)))
        if not isinstance(stored, str):
            self._check(stored, before=None)
        return "journal complete", None

    async def _append(self, journal: TrajectoryJournal, trajectory: JournaledTrajectory) -> JournaledTrajectory:
        turn = Turn((1,), (2,), observation=_last(trajectory), response_text=f"turn {next(self._numbers)}")
        return await journal.append(trajectory, turn, deadline=deadline_in(DEADLINE_SECONDS))

    def _check(self, trajectory: JournaledTrajectory, before: int | None) -> None:
        """Compare each turn with what the process knew that appended it."""
        names = [turn.response_text for turn in trajectory.turns]
        for turn, previous in zip(trajectory.turns, ["", *names], strict=False):
            if turn.observation != previous:
                self._tell(f"{turn.response_text!r} follows {previous!r}, not {turn.observation!r}")
        if trajectory.outcome is not None and trajectory.outcome.detail != _last(trajectory):
            self._tell(f"it ends after {trajectory.outcome.detail!r}, and has {names}")
        losses, count = self._known
        if losses is not None and losses == before == self._losses() and len(names) < count:
            self._tell(f"{count} turns were acknowledged, and it has {names}")

    def _tell(self, problem: str) -> None:
        self.problems.append(f"journal {self._name}: {problem}")


async def _answer(request: Awaitable[JournaledTrajectory | None]) -> JournaledTrajectory | str:
    """Return the answer, or how the trajectory ended for this process."""
    try:
        return await request or "journal lost"
    except StaleClaimError:
        return "journal taken over"
    except StoreError as error:
        return f"journal {type(error).__name__}"


def _last(trajectory: JournaledTrajectory) -> str:
    return trajectory.turns[-1].response_text if trajectory.turns else ""
