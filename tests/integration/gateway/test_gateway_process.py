"""`turnmill gateway` with several workers, which are killed and stopped."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

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


async def metrics_of(gateway: GatewayProcess) -> dict[str, float]:
    """Return the samples of a gateway by name and labels."""
    async with httpx.AsyncClient(timeout=60) as client:
        response = await client.get(gateway.metrics_url)
    families = text_string_to_metric_families(response.text)
    return {
        " ".join((sample.name.removeprefix("turnmill_gateway_"), *sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


async def test_every_worker_tells_the_metrics_of_all(start: Start, engine: ScriptedVllm):
    gateway = await start("--workers", "2", "--metrics-port", "0")
    before = await metrics_of(gateway)
    asking = [asyncio.create_task(ask(gateway, f"k{number}", "What is it?")) for number in range(4)]
    await engine.asked.wait()

    meanwhile = await metrics_of(gateway)
    opening = (await asyncio.gather(*asking))[0]
    assert await ask(gateway, "k0", "What is it?") == opening
    await ask(gateway, "k0", "What is it?", opening, "And now?")
    await ask(gateway, "k0", "Who is it?")
    async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as client:
        refused = await client.post("/k0/v1/messages", json={"messages": "none"})
        await client.get("/k0/v1/models")
    after = await metrics_of(gateway)

    assert refused.status_code == 400
    assert before["requests_total chat/completions 200"] == before["turns_total none"] == 0
    assert 1 <= meanwhile["requests_in_flight"] <= 4
    assert after["requests_in_flight"] == 0
    assert after["requests_total chat/completions 200"] == 7
    assert after["requests_total messages 400"] == 1
    assert sum(value for name, value in after.items() if name.startswith("requests_total")) == 8
    # A repeat is answered from the record.
    assert after["engine_requests_total done"] == after["engine_seconds_count"] == 6
    assert (after["turns_total none"], after["turns_total conversation"]) == (5, 1)
    assert after["tokens_total prompt"] == sum(map(len, engine.prompts))
    assert after["tokens_total response"] > 6


async def test_clients_that_go_away_and_an_engine_that_fails_are_counted(start: Start, engine: ScriptedVllm):
    gateway = await start("--metrics-port", "0")

    body = {"messages": [{"role": "user", "content": "What is it?"}]}
    async with httpx.AsyncClient(base_url=gateway.url, timeout=0.5) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/k/v1/chat/completions", json=body)
    # Its turn is recorded: the repeat samples nothing.
    await ask(gateway, "k", "What is it?")
    await engine.close()
    with pytest.raises(AssertionError, match="unavailable"):
        await ask(gateway, "k", "Who is it?")

    after = await metrics_of(gateway)
    assert (after["engine_requests_total done"], after["engine_requests_total failed"]) == (1, 1)
    assert after["requests_total chat/completions 503"] == 1
    assert sum(value for name, value in after.items() if name.startswith("turns_total")) == 1
    assert after["requests_in_flight"] == 0
