"""`turnmill gateway` with several workers, which are killed and stopped."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from support.gateway_process import GatewayProcess, ScriptedVllm
from turnmill.trajectories.client import deadline_in
from turnmill.trajectories.embedded import EmbeddedStore
from turnmill.trajectories.journal import TrajectoryJournal

Start = Callable[..., Awaitable[GatewayProcess]]


@pytest.fixture(scope="module")
def store():
    with EmbeddedStore() as store:
        yield store


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedVllm]:
    numbers = itertools.count()
    async with ScriptedVllm(lambda prompt: f"answer {next(numbers)}", seconds=1.0) as engine:
        yield engine


@pytest.fixture
async def start(tmp_path: Path, store: EmbeddedStore, engine: ScriptedVllm, request: pytest.FixtureRequest):
    started: list[GatewayProcess] = []

    async def start(*arguments: str) -> GatewayProcess:
        common = ("--redis", store.url, "--run-name", request.node.name, "--tool-parser", "hermes")
        started.append(GatewayProcess(tmp_path / str(len(started)), engine.url, *common, *arguments))
        return await started[-1].ready()

    yield start
    for gateway in started:
        gateway.close()


async def ask(gateway: GatewayProcess, key: str, *texts: str, attempts: int = 1) -> str:
    """Return the text of an answer; what breaks is asked again."""
    roles = ("user", "assistant")
    body = {"messages": [{"role": roles[index % 2], "content": text} for index, text in enumerate(texts)]}
    for attempt in range(attempts):
        try:
            async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as client:
                response = await client.post(f"/{key}/v1/chat/completions", json=body)
        except httpx.TransportError:
            if attempt == attempts - 1:
                raise
            await asyncio.sleep(0.1)
        else:
            assert response.status_code == 200, response.text
            return str(response.json()["choices"][0]["message"]["content"])
    raise AssertionError("it was not asked")


async def test_the_request_of_a_killed_worker_is_answered_once_and_the_worker_replaced(
    start: Start, store: EmbeddedStore, engine: ScriptedVllm, request: pytest.FixtureRequest
):
    gateway = await start("--workers", "2")
    workers = gateway.workers()
    opening = await ask(gateway, "k", "What is it?")
    engine.asked.clear()
    asking = asyncio.create_task(ask(gateway, "k", "What is it?", opening, "And now?", attempts=50))
    await engine.asked.wait()

    # The one that answers is among them: another serves the repeat, or the one that takes the dead one's place.
    for worker in workers:
        worker.kill()
    answer = await asyncio.wait_for(asking, 60)

    journal = TrajectoryJournal.from_url(store.url, request.node.name)
    recorded = await journal.read("k", deadline=deadline_in(10))
    await journal.close()
    assert recorded is not None
    assert [turn.response_text.removesuffix("<|im_end|>") for turn in recorded.turns] == [opening, answer]
    assert len(gateway.workers()) == 2
    assert gateway.log.count("Worker ended; starting another") == 2
    assert gateway.stop() == 0


async def test_a_gateway_that_is_stopped_answers_what_it_was_asked(start: Start, engine: ScriptedVllm):
    gateway = await start()
    asking = asyncio.create_task(ask(gateway, "k", "What is it?"))
    await engine.asked.wait()

    status = await asyncio.to_thread(gateway.stop)

    assert await asking == "answer 0"
    assert status == 0


async def test_a_gateway_that_cannot_serve_says_why(start: Start):
    with pytest.raises(AssertionError) as problem:
        await start("--model", "/nowhere")

    assert "--model /nowhere has no tokenizer" in str(problem.value)
    assert "Traceback" not in str(problem.value)
