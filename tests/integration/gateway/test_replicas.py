"""Two gateways with one trajectory store: any of them serves the next request."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import redis.asyncio

from support.gateway import ScriptedEngine, scripted_model
from turnmill.core.errors import StaleClaimError
from turnmill.gateway import replicas
from turnmill.gateway.answers import AnswerRequest
from turnmill.gateway.errors import TurnLimitError, UnavailableError
from turnmill.gateway.messages import digest, normalized
from turnmill.gateway.parsing import PlainParser
from turnmill.gateway.replicas import StoreTrajectories
from turnmill.trajectories import request_claims
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.embedded import EmbeddedStore
from turnmill.trajectories.journal import TrajectoryJournal
from turnmill.trajectories.keys import Keys

Replica = Callable[..., StoreTrajectories]


@pytest.fixture(scope="module")
def store():
    with EmbeddedStore() as store:
        yield store


@pytest.fixture
async def replica(store: EmbeddedStore, request: pytest.FixtureRequest) -> AsyncIterator[Replica]:
    created: list[StoreTrajectories] = []

    def create(engine: ScriptedEngine, **settings: Any) -> StoreTrajectories:
        model = scripted_model(engine, parser=PlainParser())
        created.append(StoreTrajectories(model, store.url, request.node.name, **settings))
        return created[-1]

    yield create
    for each in created:
        await each.close()


def asked(*texts: str) -> AnswerRequest:
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": text} for index, text in enumerate(texts)]
    return AnswerRequest(digest=digest(*texts), messages=tuple(map(normalized, messages)))


async def text_of(replica: StoreTrajectories, *texts: str) -> str:
    (answer,) = await replica.answer("key", asked(*texts))
    return str(answer.message["content"])


def slow(engine: ScriptedEngine) -> ScriptedEngine:
    generate = engine.generate

    async def generate_slowly(*args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0.3)
        return await generate(*args, **kwargs)

    engine.generate = generate_slowly  # type: ignore[method-assign]
    return engine


def counting(name: str) -> ScriptedEngine:
    numbers = iter(range(1000))
    return ScriptedEngine(lambda prompt: f"{name} {next(numbers)}")


async def test_replicas_take_turns_in_one_linear_conversation(replica: Replica):
    engines = [counting("a"), counting("b")]
    both = [replica(engine) for engine in engines]
    texts = ["What is it?"]

    for turn in range(6):
        texts.append(await text_of(both[turn % 2], *texts))
        texts.append("And now?")

    trajectory = await replica(counting("c")).find("key")
    (row,) = trajectory.tree.rows()
    assert len(row.generations) == 6
    assert [generation.reason for generation in trajectory.tree.generations] == [""] * 6
    assert [len(engine.samples) for engine in engines] == [3, 3]


async def test_a_repeat_at_another_replica_gets_the_recorded_answer(replica: Replica):
    first, second = counting("a"), counting("b")
    answer = await text_of(replica(first), "What is it?")

    repeated = await text_of(replica(second), "What is it?")

    assert repeated == answer == "a 0"
    assert second.samples == []


async def test_a_request_that_two_replicas_get_at_once_is_sampled_once(replica: Replica):
    engines = [slow(counting(name)) for name in "ab"]

    answers = await asyncio.gather(*(text_of(replica(engine), "What is it?") for engine in engines))

    trajectory = await replica(counting("c")).find("key")
    assert answers[0] == answers[1]
    assert len(trajectory.turns) == 1
    assert sum(len(engine.samples) for engine in engines) == 1


async def test_a_trajectory_whose_first_requests_come_at_once_is_opened_once(replica: Replica):
    engine = slow(counting("a"))
    asking = replica(engine)

    answers = await asyncio.gather(*(text_of(asking, "What is it?") for _ in range(5)))

    assert set(answers) == {"a 0"}
    assert len(engine.samples) == 1


async def test_the_request_of_a_replica_that_died_is_answered_by_another(replica: Replica):
    dead = replica(ScriptedEngine(lambda prompt: None))
    asking = asyncio.create_task(text_of(dead, "What is it?"))
    await dead.model.engine.asked.wait()  # type: ignore[attr-defined]
    # What a killed process does no more.
    assert dead._claims._beating is not None
    dead._claims._beating.cancel()

    assert await text_of(replica(counting("b")), "What is it?") == "b 0"
    asking.cancel()


async def test_a_replica_that_stood_still_serves_the_answer_that_another_recorded_meanwhile(replica: Replica):
    engine, awake = counting("a"), asyncio.Event()
    generate = engine.generate

    async def generate_late(*args: Any, **kwargs: Any) -> Any:
        engine.asked.set()
        await awake.wait()
        return await generate(*args, **kwargs)

    engine.generate = generate_late  # type: ignore[method-assign]
    still = replica(engine)
    asking = asyncio.create_task(text_of(still, "What is it?"))
    await engine.asked.wait()
    assert still._claims._beating is not None
    still._claims._beating.cancel()
    other = await text_of(replica(counting("b")), "What is it?")
    awake.set()

    assert await asking == other == "b 0"
    trajectory = await replica(counting("c")).find("key")
    assert len(trajectory.turns) == 1


async def test_the_requests_of_a_replica_that_is_stopped_are_answered_by_another_at_once(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(request_claims, "LIFE_SECONDS", 3600.0)
    stopped = replica(ScriptedEngine(lambda prompt: None))
    asking = asyncio.create_task(text_of(stopped, "What is it?"))
    await stopped.model.engine.asked.wait()  # type: ignore[attr-defined]
    await stopped._claims.close()

    assert await text_of(replica(counting("b")), "What is it?") == "b 0"
    asking.cancel()


async def test_a_request_whose_engine_failed_is_answered_by_another_replica(replica: Replica):
    failing = counting("a")
    failing.errors.append(UnavailableError("no engine"))
    first = replica(failing)
    with pytest.raises(UnavailableError, match="no engine"):
        await text_of(first, "What is it?")

    assert await text_of(replica(counting("b")), "What is it?") == "b 0"
    assert await text_of(first, "What is it?") == "b 0"


async def test_a_request_of_one_replica_does_not_wait_for_another_request_of_its_trajectory(replica: Replica):
    stuck = replica(ScriptedEngine(lambda prompt: None))
    asking = asyncio.create_task(text_of(stuck, "What is it?"))
    await stuck.model.engine.asked.wait()  # type: ignore[attr-defined]

    assert await text_of(replica(counting("b")), "What else is it?") == "b 0"
    asking.cancel()


async def test_turns_of_all_replicas_count_towards_the_limit(replica: Replica):
    await text_of(replica(counting("a"), max_turns=2), "What is it?")
    second = replica(counting("b"), max_turns=2)
    await text_of(second, "What else is it?")

    with pytest.raises(TurnLimitError):
        await text_of(second, "And what else?")

    assert await text_of(second, "What is it?") == "a 0"


async def test_a_replica_whose_turns_the_store_lost_goes_on_with_what_others_recorded_since(
    replica: Replica, store: EmbeddedStore, request: pytest.FixtureRequest
):
    first, second = replica(counting("a")), replica(counting("b"))
    await text_of(first, "What is it?")
    lost = await text_of(first, "What is it?", "a 0", "And now?")
    turns = Keys(request.node.name).journal("key") + ":turns"
    async with redis.asyncio.Redis.from_url(store.url) as client:
        await client.rpop(turns)
    other = await text_of(second, "What is it?", "a 0", "And now?")

    with pytest.raises(UnavailableError, match="lost some"):
        await text_of(first, "What is it?", "a 0", "And now?", lost, "Then?")
    last = await text_of(first, "What is it?", "a 0", "And now?", other, "Then?")

    assert (lost, other, last) == ("a 1", "b 0", "a 3")
    trajectory = await replica(counting("c")).find("key")
    (row,) = trajectory.tree.rows()
    assert row.generations == (0, 1, 2)


async def test_idle_trajectories_leave_the_memory_and_come_back(replica: Replica, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(replicas, "MAX_CACHED_TOKENS", 60)
    engine = counting("a")
    asking = replica(engine)
    for key in "wxyz":
        await asking.answer(key, asked("What is it?"))
    assert [key for key in "wxyz" if key in asking._cached] == ["y", "z"]

    (answer,) = await asking.answer("w", asked("What is it?"))

    assert answer.message["content"] == "a 0"
    assert "y" not in asking._cached


async def test_an_answer_comes_while_its_trajectory_is_opened_anew(replica: Replica, monkeypatch: pytest.MonkeyPatch):
    engine, awake, opened = counting("a"), asyncio.Event(), asyncio.Event()
    generate = engine.generate

    async def generate_late(*args: Any, **kwargs: Any) -> Any:
        engine.asked.set()
        await awake.wait()
        return await generate(*args, **kwargs)

    engine.generate = generate_late  # type: ignore[method-assign]
    monkeypatch.setattr(replicas, "MAX_CACHED_TOKENS", 0)
    asking = replica(engine)
    answering = asyncio.create_task(text_of(asking, "What is it?"))
    await engine.asked.wait()
    open_journal = asking._journal.open

    async def open_late(*args: Any, **kwargs: Any) -> Any:
        await opened.wait()
        return await open_journal(*args, **kwargs)

    monkeypatch.setattr(asking._journal, "open", open_late)
    # As another request does that finds that the store has lost turns.
    asking._forget("key")
    opening = asyncio.create_task(asking.find("key"))
    await asyncio.sleep(0)
    awake.set()

    assert await answering == "a 0"

    opened.set()
    assert len((await opening).turns) == 1
    assert asking._num_cached_tokens == 0


async def test_branches_at_several_replicas_at_once_are_all_recorded_and_sampled_once(replica: Replica):
    engines = [counting("a"), counting("b")]
    both = [replica(engine) for engine in engines]
    opening = await text_of(both[0], "What is it?")

    await asyncio.gather(
        *(text_of(both[number % 2], "What is it?", opening, f"Question {number}") for number in range(20))
    )

    trajectory = await replica(counting("c")).find("key")
    assert len(trajectory.turns) == 21
    assert sum(len(engine.samples) for engine in engines) == 21
    assert {generation.parent for generation in trajectory.tree.generations[1:]} == {0}


async def test_a_late_answer_of_an_earlier_attempt_is_refused(replica: Replica, store: EmbeddedStore, request: Any):
    late = asyncio.Event()
    engine = counting("a")
    first = replica(engine, attempt=1)
    await text_of(first, "What is it?")
    generate = engine.generate

    async def slow(*args: Any, **kwargs: Any) -> Any:
        await late.wait()
        return await generate(*args, **kwargs)

    engine.generate = slow  # type: ignore[method-assign]
    asking = asyncio.create_task(text_of(first, "What is it?", "a 0", "And now?"))
    journal = TrajectoryJournal.from_url(store.url, request.node.name, attempt=2)
    await journal.claim_run(deadline=deadline_in(10))
    late.set()

    with pytest.raises(StaleClaimError, match="Attempt 1"):
        await asking

    recorded = await journal.read("key", deadline=deadline_in(10))
    await journal.close()
    assert recorded is not None
    assert len(recorded.turns) == 1
