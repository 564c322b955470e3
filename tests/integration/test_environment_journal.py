"""Turns in environments outlive the process that plays them: another one replays them from the store, and goes on."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from turnmill.core.errors import OvertakenError
from turnmill.jobs import AgentTrainingJob
from turnmill.rollout.journal import Journal, NoJournal, StoreJournal
from turnmill.rollout.verlog.episode_loop import EpisodeLoop
from turnmill.rollout.verlog.slot import SlotState
from turnmill.rollout.verlog.turn_loop import TurnLoop
from turnmill.testing.agent_loops import SAMPLING, AgentLoopHarness, job_of
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.embedded import EmbeddedStore
from turnmill.trajectories.journal import TrajectoryJournal

MISBEHAVE, LOOK, FLY, WIN = "ACTION: misbehave", "ACTION: look", "ACTION: fly", "ACTION: win"
TURNS = 4


class Crash(BaseException):
    """The end of the process: no error handler catches it."""


def crashing(answers: list[str]) -> Callable[[Any], str]:
    """Return a policy that gives these answers, and then ends the process."""
    left = iter(answers)

    def script(_: Any) -> str:
        for answer in left:
            return answer
        raise Crash

    return script


class Attempts:
    """Attempts at one run, each with loops of its own and all with one store."""

    def __init__(self, folder: Path, url: str, whole_episodes: bool) -> None:
        self.folder, self.url, self.whole_episodes = folder, url, whole_episodes
        self.number = 0

    def job(self, seed: int = 0, penalty: float = 0.1, prompt: str = "compact") -> AgentTrainingJob:
        """Return a job with one environment."""
        if self.whole_episodes:
            own = {"algorithm": {"type": "gigpo"}, "tasksPerStep": 1}
            agent = {"groupSize": 2}
        else:
            own, agent = {"turnsPerStep": TURNS}, {}
        return job_of(
            {"maxTurns": 20, "prompt": prompt, "maxResponseTokens": 32, **agent},
            {
                "name": "support.environments:Hostile", "count": agent.get("groupSize", 1),
                "options": {"on_step": "exits"}, "invalidPenalty": penalty,
            },
            seed=seed,
            **own,
        )  # fmt: skip

    def journal(self) -> TrajectoryJournal:
        """Return the journal of a process of the run."""
        return TrajectoryJournal.from_url(self.url, "run")

    def begin(self, script: Any, *, journal: Journal | None = None, **job: Any) -> AgentLoopHarness:
        """Return the loop of a new attempt."""
        self.number += 1
        kind = EpisodeLoop if self.whole_episodes else TurnLoop
        folder = self.folder / str(self.number)
        return AgentLoopHarness(kind, folder, script, self.job(**job), journal=journal or StoreJournal(self.journal()))

    async def play(self, harness: AgentLoopHarness, *, step: int = 1, validate: bool = False) -> Any:
        """Play an episode, or the turns of a step; close the loop then."""
        place = {"index": 0, "session_id": 0} if self.whole_episodes else {"slot": 0}
        try:
            return await harness.loop.run(SAMPLING, **place, global_steps=step, validate=validate)
        finally:
            await harness.loop.close()


@pytest.fixture(scope="module")
def store() -> Iterator[EmbeddedStore]:
    with EmbeddedStore() as store:
        yield store


@pytest.fixture(params=[False, True], ids=["turns", "episodes"])
async def attempts(request: pytest.FixtureRequest, tmp_path: Path, store: EmbeddedStore) -> Attempts:
    made = Attempts(tmp_path, store.url, request.param)
    journal = made.journal()
    for name in await journal.names(deadline=deadline_in(10)):
        await journal.delete(name, deadline=deadline_in(10))
    await journal.close()
    return made


def learned(rows: list[Any]) -> list[dict[str, Any]]:
    """Return what is learned from, without times."""
    parts = [row.as_dict() for row in rows]
    return [{name: str(value) for name, value in part.items() if name != "turn_metadata"} for part in parts]


@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize("played", range(TURNS + 1))
async def test_another_process_goes_on_after_the_last_turn(attempts: Attempts, played: int, validate: bool):
    answers = [LOOK, FLY, LOOK, WIN]
    expected = await attempts.play(attempts.begin(answers, journal=NoJournal()), validate=validate)
    with suppress(Crash):
        await attempts.play(attempts.begin(crashing(answers[:played])), validate=validate)

    second = attempts.begin(answers[played:])
    rows = await attempts.play(second, validate=validate)

    assert len(second.policy.requests) == len(answers) - played
    assert learned(rows) == learned(expected)
    logged = [(turn.turn, turn.response, turn.reward) for turn in second.logged(validation=validate)]
    assert logged == [(0, LOOK, 0.0), (1, FLY, -0.1), (2, LOOK, 0.0), (3, WIN, 1.0)]


@pytest.mark.parametrize("attempts", [False], indirect=True)
async def test_turns_go_on_in_the_next_episode(attempts: Attempts):
    with pytest.raises(Crash):
        await attempts.play(attempts.begin(crashing([WIN, LOOK])))

    second = attempts.begin([FLY, LOOK])
    await attempts.play(second)

    assert [turn.episode for turn in second.logged()] == ["t0-0", "t0-1", "t0-1", "t0-1"]
    assert [turn.response for turn in second.logged()] == [WIN, LOOK, FLY, LOOK]


@pytest.mark.parametrize("attempts", [False], indirect=True)
async def test_batches_of_one_step_have_turns_of_their_own(attempts: Attempts):
    def begin(answers: list[str]) -> AgentLoopHarness:
        return attempts.begin(crashing(answers))

    async def warm_up(harness: AgentLoopHarness) -> None:
        for _ in range(2):
            await harness.loop.run(SAMPLING, slot=0, global_steps=0)

    first, second = begin([LOOK] * TURNS + [FLY]), begin([FLY] * (TURNS - 1))
    with pytest.raises(Crash):
        await warm_up(first)
    await first.loop.close()

    await warm_up(second)
    await second.loop.close()

    assert [turn.response for turn in second.logged()] == [LOOK] * TURNS + [FLY] * TURNS


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"prompt": "naive"}, {"penalty": 0.2}], ids=["seed", "prompt", "result"]
)
async def test_turns_that_come_out_otherwise_are_played_anew(attempts: Attempts, change: dict[str, Any]):
    with pytest.raises(Crash):
        await attempts.play(attempts.begin(crashing([LOOK, FLY])))

    second = attempts.begin([LOOK, LOOK, LOOK, WIN], **change)
    rows = await attempts.play(second)

    assert len(second.policy.requests) == TURNS
    assert "step 0" in second.prompts[0]
    assert [row.metadata.reward for row in rows[:TURNS]] == [0, 0, 0, 1]


async def test_turns_of_an_episode_that_failed_are_not_carried_on(attempts: Attempts):
    first = attempts.begin(crashing([LOOK, MISBEHAVE, LOOK]))
    if attempts.whole_episodes:
        await attempts.play(first)
    else:
        with pytest.raises(Crash):
            await attempts.play(first)

    second = attempts.begin([FLY, LOOK, LOOK, WIN])
    rows = await attempts.play(second)

    assert len(second.policy.requests) == TURNS
    assert [row.metadata.reward for row in rows[:TURNS]] == [-0.1, 0, 0, 1]


async def test_an_attempt_that_was_overtaken_keeps_no_turn(attempts: Attempts):
    def script(_: Any) -> str:
        return LOOK

    first = attempts.begin(script)
    first.loop.journal = overtaken = StoreJournal(attempts.journal())
    append = overtaken.append

    async def append_late(episode: Any, turn: Any) -> None:
        other = attempts.journal()
        await other.open(episode.name, deadline=deadline_in(10))
        await other.close()
        await append(episode, turn)

    overtaken.append = append_late  # type: ignore[method-assign]
    if attempts.whole_episodes:
        failure = await attempts.play(first)
        assert failure.cause == OvertakenError.cause
    else:
        rows = await attempts.play(first)
        assert rows[-1].metadata.failure_causes == (OvertakenError.cause,)

    assert overtaken.num_failed_writes == 0


@pytest.mark.parametrize("attempts", [False], indirect=True)
async def test_the_state_after_a_step_is_kept_until_it_is_reported(attempts: Attempts):
    harness = attempts.begin([LOOK, WIN, FLY, LOOK, LOOK] + [LOOK] * 3)

    for step in (1, 2):
        await harness.loop.run(SAMPLING, slot=0, global_steps=step)
    await harness.loop.close()

    assert harness.loop.slot(0).segment_ends == {
        1: SlotState(0, 1, TURNS, (FLY, LOOK)),
        2: SlotState(0, 1, 2 * TURNS, (FLY, LOOK, LOOK, LOOK, LOOK, LOOK)),
    }
