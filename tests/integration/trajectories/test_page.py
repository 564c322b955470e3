"""The page of a trajectory store, and the journal on the page of a run."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from starlette.testclient import TestClient

from turnmill.core.errors import StoreUnavailableError
from turnmill.core.trajectory import TrajectoryMetadata, TrajectoryOutcome, Turn
from turnmill.observability.run_folder import RunFolder
from turnmill.observability.trajectory_log import TrajectoryLog, TurnRecord
from turnmill.trajectories.address import JournalAddress
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.journal import JournaledTrajectory, TrajectoryJournal
from turnmill.trajectory_page.app import create_app
from turnmill.trajectory_page.source import RunSource, Source, StoreSource, open_source
from turnmill.trajectory_page.summary import Summary

TURN = Turn(
    prompt_ids=(1, 2), response_ids=(3, 4), log_probs=(-0.5, -1.0), prompt_text="2+2=?", response_text="<b>4</b>",
    observation="[4]", observation_ids=(5,), policy_version=3, asked_at=1.7e9, seconds={"generation": 0.5},
)  # fmt: skip


@pytest.fixture
async def journal(redis_url: str) -> AsyncIterator[TrajectoryJournal]:
    made = TrajectoryJournal.from_url(redis_url, f"run {uuid4().hex}")
    yield made
    await made.close()


@pytest.fixture
def source(redis_url: str) -> Iterator[StoreSource]:
    made = StoreSource(redis_url)
    yield made
    made.close()


async def play(journal: TrajectoryJournal, name: str, *turns: Turn) -> JournaledTrajectory:
    trajectory = await journal.open(name, metadata=TrajectoryMetadata(7, 12), deadline=deadline_in(5))
    for turn in turns:
        trajectory = await journal.append(trajectory, turn, deadline=deadline_in(5))
    return trajectory


async def finish(journal: TrajectoryJournal, trajectory: JournaledTrajectory) -> None:
    await journal.finish(trajectory, TrajectoryOutcome("completed", "stop"), deadline=deadline_in(5))


def updated_summaries(source: Source, run: str) -> dict[str, Summary]:
    # The update runs an event loop, so this function must run in a thread without one.
    for _ in source.update():
        pass
    return {each.name: each for each in source.index.summaries() if each.run == run}


async def test_trajectories_in_flight_and_ended_ones_are_listed(journal, source):
    await play(journal, "t7-0-0", TURN, TURN)
    await finish(journal, await play(journal, "t7-0-1", TURN))

    found = await asyncio.to_thread(updated_summaries, source, journal._run)

    assert {name: (each.outcome, each.turns, each.tokens) for name, each in found.items()} == {
        "t7-0-0": ("in flight", 2, 4),
        "t7-0-1": ("ended", 1, 2),
    }
    assert (found["t7-0-0"].first_step, found["t7-0-0"].number, found["t7-0-0"].last_version) == (7, 12, 3)
    assert found["t7-0-0"].task == found["t7-0-1"].task


async def test_the_list_follows_the_journal(journal, source):
    trajectory = await play(journal, "t7-0-0", TURN)
    gone = await play(journal, "t7-0-1", TURN)
    first = await asyncio.to_thread(updated_summaries, source, journal._run)
    await journal.append(trajectory, TURN, deadline=deadline_in(5))
    await journal.delete(gone.name, deadline=deadline_in(5))

    second = await asyncio.to_thread(updated_summaries, source, journal._run)

    assert {name: each.turns for name, each in first.items()} == {"t7-0-0": 1, "t7-0-1": 1}
    assert {name: each.turns for name, each in second.items()} == {"t7-0-0": 2}


async def test_a_trajectory_in_flight_is_shown_turn_by_turn(journal, source):
    await play(journal, "a/b 💥", TURN, TURN)
    found = await asyncio.to_thread(updated_summaries, source, journal._run)
    client = TestClient(create_app(source, pause_seconds=3600), base_url="http://127.0.0.1")

    page = await asyncio.to_thread(client.get, f"/trajectory/{found['a/b 💥'].key}")

    assert page.status_code == 200
    assert page.text.count('<article class="turn"') == 2
    assert "&lt;b&gt;4&lt;/b&gt;" in page.text
    assert "[4]" in page.text


async def test_the_page_of_a_run_shows_a_trajectory_in_flight_until_it_has_ended(
    journal, redis_url, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = RunFolder(tmp_path / "run")
    folder.create()
    JournalAddress(redis_url, journal._run).write(folder.path)
    trajectory = await play(journal, "t7-0-0", TURN)
    source = RunSource(folder.path)
    client = TestClient(create_app(source, pause_seconds=3600), base_url="http://127.0.0.1")

    in_flight = (await asyncio.to_thread(updated_summaries, source, journal._run))["t7-0-0"]
    before = await asyncio.to_thread(client.get, f"/trajectory/{in_flight.key}")
    await finish(journal, trajectory)
    record = TurnRecord("t7-0-0", 12, 0, 7, 3, "2+2=?", "4", "", 1.0, done=True, stop_reason="completed")
    TrajectoryLog(folder).append([record])
    await asyncio.to_thread(updated_summaries, source, journal._run)
    after = await asyncio.to_thread(client.get, f"/trajectory/{in_flight.key}")

    assert (in_flight.outcome, before.status_code) == ("in flight", 200)
    assert [(each.key, each.outcome) for each in source.index.summaries()] == [("t7-0-0", "solved")]
    assert after.url.path == "/trajectory/t7-0-0"
    source.close()


async def test_the_page_of_a_run_changes_to_the_journal_of_the_next_attempt(journal, redis_url, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = RunFolder(tmp_path / "run")
    folder.create()
    before = TrajectoryJournal.from_url(redis_url, f"{journal._run} before")
    JournalAddress(redis_url, before._run).write(folder.path)
    await play(before, "t6-0-0", TURN)
    await before.close()
    source = RunSource(folder.path)
    first = await asyncio.to_thread(updated_summaries, source, before._run)

    JournalAddress(redis_url, journal._run).write(folder.path)
    await asyncio.to_thread(lambda: list(source.update()))
    empty = source.index.summaries()
    await play(journal, "t7-0-0", TURN)
    second = await asyncio.to_thread(updated_summaries, source, journal._run)

    assert (first.keys(), empty, second.keys()) == ({"t6-0-0"}, [], {"t7-0-0"})
    source.close()


async def test_the_page_keeps_its_content_when_the_store_becomes_unavailable(journal, redis_url, tmp_path: Path):
    source = StoreSource(redis_url)
    await play(journal, "t7-0-0", TURN)
    await asyncio.to_thread(updated_summaries, source, journal._run)
    source._store._url = f"unix://{tmp_path}/none"

    with pytest.raises(StoreUnavailableError):
        await asyncio.to_thread(lambda: list(source.update()))

    assert [each.name for each in source.index.summaries("WHERE run = ?", (journal._run,))] == ["t7-0-0"]
    source.close()


def test_a_store_is_opened_by_its_url(redis_url):
    source = open_source(redis_url)

    assert isinstance(source, StoreSource)
    assert source.state().name == "going on"
    source.close()
