"""Two gateways with one trajectory store: any of them serves the next request."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from support.gateway import ScriptedEngine, scripted_model
from turnmill.core.errors import StaleClaimError
from turnmill.gateway.answers import AnswerRequest
from turnmill.gateway.messages import digest, normalized
from turnmill.gateway.parsing import PlainParser
from turnmill.gateway.replicas import StoreTrajectories
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.embedded import EmbeddedStore
from turnmill.trajectories.journal import TrajectoryJournal

Replica = Callable[..., StoreTrajectories]


@pytest.fixture(scope="module")
def store():
    with EmbeddedStore() as store:
        yield store


@pytest.fixture
async def replica(store: EmbeddedStore, request: pytest.FixtureRequest) -> AsyncIterator[Replica]:
    replicas: list[StoreTrajectories] = []

    def create(engine: ScriptedEngine, *, attempt: int | None = None) -> StoreTrajectories:
        journal = TrajectoryJournal.from_url(store.url, request.node.name, attempt=attempt)
        replicas.append(StoreTrajectories(scripted_model(engine, parser=PlainParser()), journal))
        return replicas[-1]

    yield create
    for each in replicas:
        await each.close()


def asked(*texts: str) -> AnswerRequest:
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": text} for index, text in enumerate(texts)]
    return AnswerRequest(digest=digest(*texts), messages=tuple(map(normalized, messages)))


async def text_of(replica: StoreTrajectories, *texts: str) -> str:
    (answer,) = await replica.answer("key", asked(*texts))
    return str(answer.message["content"])


def counting(name: str) -> ScriptedEngine:
    numbers = iter(range(1000))
    return ScriptedEngine(lambda prompt: f"{name} {next(numbers)}")


async def test_replicas_take_turns_in_one_linear_conversation(replica: Replica):
    engines = [counting("a"), counting("b")]
    replicas = [replica(engine) for engine in engines]
    texts = ["What is it?"]

    for turn in range(6):
        texts.append(await text_of(replicas[turn % 2], *texts))
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


async def test_one_answer_is_recorded_of_a_request_that_two_replicas_answer_at_once(replica: Replica):
    engines = [counting("a"), counting("b")]

    answers = await asyncio.gather(*(text_of(replica(engine), "What is it?") for engine in engines))

    trajectory = await replica(counting("c")).find("key")
    assert answers[0] == answers[1]
    assert len(trajectory.turns) == 1


async def test_branches_at_several_replicas_at_once_are_all_recorded_and_sampled_once(replica: Replica):
    engines = [counting("a"), counting("b")]
    replicas = [replica(engine) for engine in engines]
    opening = await text_of(replicas[0], "What is it?")

    await asyncio.gather(
        *(text_of(replicas[number % 2], "What is it?", opening, f"Question {number}") for number in range(20))
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
