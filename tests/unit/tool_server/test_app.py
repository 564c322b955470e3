import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from support.tool_server import Count, Echo, Gate, MemoryStore, Raising, tool_context
from turnmill.core.errors import CallMismatchError, StoreUnavailableError, ToolFailedError
from turnmill.observability.tool_metrics import ToolMetrics
from turnmill.sandboxes.base import Python, SandboxResult, SandboxTask
from turnmill.testing.tool_calls import ScriptedSandbox
from turnmill.tool_server import requests
from turnmill.tool_server.app import Worker, build_app
from turnmill.tool_server.calls import CallExecutor
from turnmill.tool_server.instrumentation import InstrumentedSandbox
from turnmill.tool_server.settings import ServerSettings
from turnmill.tool_server.tool_set import ToolSet
from turnmill.tools.base import Tool, ToolCall, ToolContext, ToolResult


class Client:
    """A client that sends requests to one worker as clients of verl-tool do."""

    def __init__(self, http: httpx.AsyncClient, worker: Worker, store: MemoryStore) -> None:
        self.http = http
        self.worker = worker
        self.store = store

    async def post(self, trajectory_ids: Any, actions: Any, **fields: Any) -> httpx.Response:
        return await self.send({"trajectory_ids": trajectory_ids, "actions": actions, **fields})

    async def send(self, body: Any, **headers: str) -> httpx.Response:
        return await self.http.post("/get_observation", json=body, headers=headers)


@asynccontextmanager
async def serving(*tools: Tool, **settings: Any) -> AsyncIterator[Client]:
    store, metrics = MemoryStore(), ToolMetrics(tuple(tool.name for tool in tools))
    chosen = ServerSettings(**settings)
    worker = Worker(chosen, CallExecutor(ToolSet(tools), store, metrics), metrics)
    transport = httpx.ASGITransport(build_app(worker), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
        yield Client(http, worker, store)


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with serving(Echo(tool_context()), Count(tool_context())) as client:
        yield client


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110 (there is no event to wait for)
            await asyncio.sleep(0)


@pytest.mark.feature("verl-tool", "an endpoint for actions")
async def test_an_action_is_answered_with_observations_dones_and_valids(client: Client):
    response = await client.post(["t"], ["echo hello"], extra_fields=[{}])

    assert response.status_code == 200
    body = response.json()
    of_verl_tool = ["observations", "dones", "valids", "processing_time_ms", "queue_time_ms"]
    assert list(body) == [*of_verl_tool, "versions"]
    assert (body["observations"], body["dones"], body["valids"]) == (["hello"], [False], [True])


@pytest.mark.feature("verl-tool", "times of a request")
async def test_times_are_in_the_body_and_in_a_header(client: Client):
    response = await client.post(["t"], ["echo hello"])

    assert response.json()["processing_time_ms"] >= 0
    assert response.json()["queue_time_ms"] >= 0
    assert float(response.headers["X-Process-Time"]) > 0


@pytest.mark.feature("verl-tool", "required fields of a request")
@pytest.mark.feature("verl-tool", "ids of trajectories are strings")
@pytest.mark.feature("verl-tool", "as many actions as trajectories")
@pytest.mark.feature("verl-tool", "as many extra fields as trajectories")
@pytest.mark.parametrize(
    ("body", "place", "kind"),
    [
        ({}, ["body", "trajectory_ids"], "missing"),
        ({"trajectory_ids": ["t"]}, ["body", "actions"], "missing"),
        ({"trajectory_ids": [], "actions": ["a"]}, ["body", "trajectory_ids"], "too_short"),
        ({"trajectory_ids": ["t"], "actions": []}, ["body", "actions"], "too_short"),
        ({"trajectory_ids": [1], "actions": ["a"]}, ["body", "trajectory_ids", 0], "string_type"),
        ({"trajectory_ids": "t", "actions": ["a"]}, ["body", "trajectory_ids"], "list_type"),
        ({"trajectory_ids": ["t", "u"], "actions": ["a"]}, ["body", "actions"], "value_error"),
        (
            {"trajectory_ids": ["t", "u"], "actions": ["a", "b"], "extra_fields": [{}]},
            ["body", "extra_fields"],
            "value_error",
        ),
        (
            {"trajectory_ids": ["t"], "actions": ["a"], "extra_fields": [{"call_id": [1]}]},
            ["body", "extra_fields"],
            "value_error",
        ),
        ([], ["body"], "model_type"),
    ],
)
async def test_an_invalid_body_is_refused(client: Client, body: Any, place: list[Any], kind: str):
    response = await client.send(body)

    assert response.status_code == 422
    assert (response.json()["detail"][0]["loc"], response.json()["detail"][0]["type"]) == (place, kind)
    assert response.json()["detail"][0].keys() <= {"type", "loc", "msg", "input", "ctx"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"trajectory_ids": ["\\ud800"], "actions": ["a"]}',
        b"[" * 100_000,
        b'{"trajectory_ids": ["t"], "actions": ["a"], "finish": [' + b"9" * 100_000 + b"]}",
        b'{"trajectory_ids": ["t"], "actions": [NaN]}',
    ],
)
async def test_a_body_that_is_not_json_is_refused(client: Client, body: bytes):
    response = await client.http.post("/get_observation", content=body)

    assert response.status_code == 422
    assert response.json()["detail"]


async def test_a_too_large_body_is_refused():
    async with serving(Echo(tool_context()), max_request_bytes=100) as client:
        response = await client.post(["t"], ["echo " + "x" * 100])

    assert response.status_code == 413


class Body:
    """A body in pieces; `num_read` counts those that the server took. `ends=False`: the last never comes."""

    def __init__(self, *pieces: bytes, ends: bool = True) -> None:
        self.pieces, self.ends, self.num_read = pieces, ends, 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            self.num_read += 1
            yield piece
        if not self.ends:
            await asyncio.Event().wait()


ECHO = b'{"trajectory_ids": ["t"], "actions": ["echo a"]}'


async def test_a_request_has_at_most_4096_actions(client: Client):
    accepted = await client.post(["t"] * 4096, ["echo a"] * 4096)
    refused = await client.post(["t"] * 4097, ["echo a"] * 4097)

    assert accepted.json()["observations"] == ["a"] * 4096
    assert refused.status_code == 422
    assert {(problem["type"], problem["ctx"]["max_length"]) for problem in refused.json()["detail"]} == {
        ("too_long", 4096)
    }
    assert client.worker.executor.num_done == 4096


async def test_errors_of_a_large_body_do_not_repeat_it(client: Client):
    small, large = await client.post(["t"], [1]), await client.post(["t"] * 20_000, [1] * 20_000)

    assert small.json()["detail"][0]["input"] == 1
    assert all("input" not in problem for problem in large.json()["detail"])
    assert len(large.content) < len(large.request.content) * 20


async def test_a_body_that_names_a_too_large_length_is_refused_unread():
    body = Body(ECHO)
    async with serving(Echo(tool_context()), max_request_bytes=10) as client:
        response = await client.http.post("/get_observation", content=body, headers={"Content-Length": str(len(ECHO))})

    assert response.status_code == 413
    assert body.num_read == 0


async def test_a_body_is_read_only_after_admission():
    gate, body = Gate(tool_context()), Body(ECHO)
    async with serving(gate, Echo(tool_context()), max_concurrent_requests=1) as client:
        first = asyncio.create_task(client.post(["t"], ["gate"]))
        await eventually(lambda: gate.num_waiting == 1)
        second = asyncio.create_task(client.http.post("/get_observation", content=body))
        await eventually(lambda: client.worker.admission.num_waiting == 1)
        read_while_waiting = body.num_read
        gate.opened.set()
        await first

        assert (await second).json()["observations"] == ["a"]
    assert (read_while_waiting, body.num_read) == (0, 1)


async def test_a_body_that_stops_arriving_is_answered_408(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(requests, "PIECE_SECONDS", 0.01)
    async with serving(Echo(tool_context())) as client:
        response = await client.http.post("/get_observation", content=Body(ECHO[:10], ends=False))

    assert (response.status_code, response.headers["connection"]) == (408, "close")
    assert "10 bytes came" in response.json()["detail"]
    assert client.worker.admission.num_active == 0


async def test_a_body_that_arrives_in_drops_is_answered_408(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(requests, "BODY_SECONDS", 0.0)
    async with serving(Echo(tool_context())) as client:
        response = await client.http.post("/get_observation", content=Body(*[b" "] * 1000, ends=False))

    assert response.status_code == 408


async def test_the_clients_deadline_bounds_the_body():
    headers = {"X-Deadline-Seconds": "0.01"}
    async with serving(Echo(tool_context())) as client:
        response = await client.http.post("/get_observation", content=Body(ECHO[:10], ends=False), headers=headers)

    assert (response.status_code, response.json()["cause"]) == (503, "timeout")


async def test_a_body_that_cannot_be_read_is_no_timeout_before_the_clients_deadline():
    async def body() -> AsyncIterator[bytes]:
        yield ECHO[:10]
        raise TimeoutError("the connection stands still")

    async with serving(Echo(tool_context())) as client:
        response = await client.http.post("/get_observation", content=body(), headers={"X-Deadline-Seconds": "60"})

    assert response.status_code == 500


async def test_the_clients_deadline_bounds_the_queue():
    gate = Gate(tool_context())
    async with serving(gate, Echo(tool_context()), max_concurrent_requests=1) as client:
        first = asyncio.create_task(client.post(["t"], ["gate"]))
        await eventually(lambda: gate.num_waiting == 1)
        body = {"trajectory_ids": ["u"], "actions": ["echo a"]}
        response = await client.send(body, **{"X-Deadline-Seconds": "0.01"})
        gate.opened.set()
        await first

    assert (response.status_code, response.json()["cause"]) == (503, "timeout")


@pytest.mark.feature("verl-tool", "unknown keys")
async def test_unknown_keys_are_ignored(client: Client):
    assert (await client.post(["t"], ["echo a"], stdin="x", extra_field=[{}])).json()["observations"] == ["a"]


@pytest.mark.feature("verl-tool", "lists of finish and last step of any length")
async def test_a_short_list_of_finish_leaves_the_other_items_unchanged(client: Client):
    body = (await client.post(["t", "u"], ["echo a", "echo b"], finish=[True])).json()

    assert (body["observations"], body["dones"]) == (["", "b"], [True, False])


@pytest.mark.feature("verl-tool", "lists of finish and last step of any length")
async def test_surplus_values_of_finish_are_ignored(client: Client):
    assert (await client.post(["t"], ["echo a"], finish=[False, True])).json()["observations"] == ["a"]


@pytest.mark.feature("verl-tool", "lists of finish and last step of any length")
async def test_a_short_list_of_last_steps_leaves_the_other_items_unchanged(client: Client):
    for _ in range(2):
        await client.post(["t", "u"], ["count", "count"], is_last_step=[True])

    assert (await client.post(["t", "u"], ["count", "count"])).json()["observations"] == ["1", "3"]


@pytest.mark.feature("verl-tool", "lists of finish and last step of any length")
async def test_surplus_values_of_the_last_step_are_ignored(client: Client):
    assert (await client.post(["t"], ["count"], is_last_step=[False, True])).json()["observations"] == ["1"]
    assert (await client.post(["t"], ["count"])).json()["observations"] == ["2"]


@pytest.mark.feature("verl-tool", "finish among the extra fields")
async def test_finish_in_the_extra_fields_finishes(client: Client):
    body = (await client.post(["t"], ["echo a"], extra_fields=[{"finish": True}], finish=[False])).json()

    assert (body["observations"], body["dones"], body["valids"]) == ([""], [True], [True])


@pytest.mark.feature("verl-tool", "finish among the extra fields")
async def test_finish_in_the_first_items_extra_fields_overrides_the_list(client: Client):
    body = (
        await client.post(["t", "u"], ["echo a", "echo b"], extra_fields=[{"finish": False}, {}], finish=[1, 1])
    ).json()

    assert body["observations"] == ["a", "b"]


async def test_a_repeated_call_is_answered_from_the_record(client: Client):
    request = {"trajectory_ids": ["t"], "actions": ["count"], "extra_fields": [{"call_id": "1"}]}

    answers = [(await client.send(request)).json()["observations"] for _ in range(2)]

    assert answers == [["1"], ["1"]]


async def test_a_store_failure_is_a_503_with_cause_and_retry_after(client: Client):
    client.store.errors["begin"] = [StoreUnavailableError("The store did not answer.")]

    response = await client.post(["t"], ["count"])

    assert response.status_code == 503
    assert response.json() == {"detail": "The store did not answer.", "cause": "store_unavailable"}
    assert int(response.headers["Retry-After"]) >= 1


async def test_a_call_that_would_fail_again_is_a_409_without_retry_after(client: Client):
    client.store.errors["begin"] = [CallMismatchError("This id belongs to another action.")]

    response = await client.post(["t", "u"], ["count", "count"], extra_fields=[{"call_id": "1"}, {"call_id": "1"}])

    assert response.status_code == 409
    detail = "1 of 2 calls failed: This id belongs to another action."
    assert response.json() == {"detail": detail, "cause": "call_mismatch"}
    assert "Retry-After" not in response.headers


async def test_one_failed_call_of_several_fails_the_request_and_keeps_the_others():
    raising = Raising(tool_context(), [ToolFailedError("The retriever is down.")])
    async with serving(raising, Count(tool_context())) as client:
        fields = {"extra_fields": [{"call_id": "1"}, {"call_id": "1"}]}
        failed = await client.post(["t", "u"], ["raise", "count"], **fields)
        repeated = await client.post(["t", "u"], ["raise", "count"], **fields)

    assert failed.status_code == 503
    assert failed.json() == {"detail": "1 of 2 calls failed: The retriever is down.", "cause": "tool"}
    assert repeated.json()["observations"] == ["recovered", "1"]


@pytest.mark.feature("verl-tool", "a service that is down")
async def test_a_failed_call_without_id_does_not_make_the_client_repeat_the_others():
    raising = Raising(tool_context(), [ToolFailedError("The retriever is down.")] * 2)
    async with serving(raising, Count(tool_context())) as client:
        response = await client.post(
            ["t", "u", "v"], ["raise", "count", "raise"], extra_fields=[{}, {}, {"call_id": "1"}]
        )
        next_one = await client.post(["u"], ["count"])

    assert response.status_code == 200
    body = response.json()
    error = "Tool processing failed: The retriever is down."
    assert body["observations"][0] == {"obs": "", "error": error, "tool_type": "raising", "cause": "tool"}
    assert body["observations"][1:] == ["1", body["observations"][0]]
    assert (body["dones"], body["valids"]) == ([True, False, True], [False, True, False])
    assert next_one.json()["observations"] == ["2"]


async def test_a_request_without_ids_of_which_every_call_failed_may_be_sent_again():
    raising = Raising(tool_context(), [ToolFailedError("The retriever is down.")] * 2)
    async with serving(raising) as client:
        failed = await client.post(["t", "u"], ["raise", "raise"])
        repeated = await client.post(["t", "u"], ["raise", "raise"])

    assert (failed.status_code, failed.json()["cause"]) == (503, "tool")
    assert repeated.json()["observations"] == ["recovered", "recovered"]


class Waiter(Tool):
    """Runs two tasks in the sandbox for every action."""

    name = "waiter"

    def usage(self) -> str:
        return "anything"

    def parse(self, action: str) -> str | None:
        return action

    async def call(self, call: ToolCall) -> ToolResult:
        for _ in range(2):
            await self.context.sandbox.run(SandboxTask(Python("")))
        return ToolResult("")


@pytest.mark.feature("verl-tool", "times of a request")
async def test_waiting_for_the_sandbox_is_queue_time():
    metrics = ToolMetrics()
    sandbox = ScriptedSandbox(*(SandboxResult(0, waiting_seconds=seconds) for seconds in (7.0, 70.0, 1.0, 2.0)))
    async with serving(Waiter(ToolContext(InstrumentedSandbox(sandbox, metrics)))) as client:
        first = (await client.post(["t"], ["x"])).json()
        second = (await client.post(["t"], ["x"])).json()

    assert first["queue_time_ms"] >= 77_000
    assert 3_000 <= second["queue_time_ms"] < 77_000
    # The time that the sandbox reports has not passed here.
    assert first["processing_time_ms"] == 0


@pytest.mark.feature("verl-tool", "request timeout")
async def test_calls_beyond_the_request_timeout_answer_500_as_verl_tool_does():
    async with serving(Gate(tool_context()), request_timeout=0.01) as client:
        response = await client.post(["t"], ["gate"])

    assert response.status_code == 500
    assert response.json() == {"detail": "Processing failed: 500: Action processing failed: "}


async def test_calls_beyond_the_clients_deadline_answer_503():
    async with serving(Gate(tool_context()), request_timeout=60) as client:
        body = {"trajectory_ids": ["t"], "actions": ["gate"]}
        response = await client.send(body, **{"X-Deadline-Seconds": "0.01"})

    assert response.status_code == 503
    assert response.json()["cause"] == "timeout"


async def test_a_client_that_asks_for_an_answer_in_time_sends_its_request_again():
    gate = Gate(tool_context())
    body = {"trajectory_ids": ["t"], "actions": ["gate"], "extra_fields": [{"call_id": "1"}]}
    async with serving(gate) as client:
        before = await client.send(body, **{"X-Answer-Seconds": "0.01"})
        gate.opened.set()
        after = await client.send(body, **{"X-Answer-Seconds": "60"})

    assert (before.status_code, before.json()["cause"]) == (503, "call_in_progress")
    assert (after.status_code, after.json()["observations"]) == (200, ["opened"])
    assert client.store.operations == ["begin", "commit"]


async def test_a_request_that_does_not_get_its_turn_in_time_is_told_so():
    gate = Gate(tool_context())
    async with serving(gate, Echo(tool_context()), max_concurrent_requests=1) as client:
        first = asyncio.create_task(client.post(["t"], ["gate"]))
        await eventually(lambda: gate.num_waiting == 1)
        body = {"trajectory_ids": ["u"], "actions": ["echo a"], "extra_fields": [{"call_id": "1"}]}
        response = await client.send(body, **{"X-Answer-Seconds": "0.01", "X-Deadline-Seconds": "0.001"})
        gate.opened.set()
        await first

    assert (response.status_code, response.json()["cause"]) == (503, "queue")


async def test_a_worker_that_ends_cancels_the_calls_that_go_on():
    body = {"trajectory_ids": ["t"], "actions": ["gate"], "extra_fields": [{"call_id": "1"}]}
    async with serving(Gate(tool_context())) as client:
        await client.send(body, **{"X-Answer-Seconds": "0.01"})
        await client.worker.drain()

        assert client.store.claims == {}


@pytest.mark.parametrize("header", ["X-Deadline-Seconds", "X-Answer-Seconds"])
@pytest.mark.parametrize("value", ["nan", "inf", "0", "-1", "soon"])
async def test_an_invalid_time_is_refused(client: Client, header: str, value: str):
    body = {"trajectory_ids": ["t"], "actions": ["echo a"]}

    assert (await client.send(body, **{header: value})).status_code == 422


@pytest.mark.feature("verl-tool", "limit on concurrent requests")
async def test_requests_beyond_the_limit_wait_and_report_their_queue_time():
    gate = Gate(tool_context())
    async with serving(gate, max_concurrent_requests=1) as client:
        first = asyncio.create_task(client.post(["t"], ["gate"]))
        await eventually(lambda: gate.num_waiting == 1)
        second = asyncio.create_task(client.post(["u"], ["gate"]))
        await eventually(lambda: client.worker.admission.num_waiting == 1)
        begun = time.perf_counter()
        health = (await client.http.get("/health")).json()
        waited_ms = (time.perf_counter() - begun) * 1000
        gate.opened.set()
        answers = [(await first).json(), (await second).json()]

    assert (health["concurrent_requests"], health["active_tasks"]) == (1, 2)
    assert gate.max_waiting == 1
    assert answers[0]["queue_time_ms"] >= 0
    assert answers[1]["queue_time_ms"] >= waited_ms


@pytest.mark.feature("verl-tool", "health")
@pytest.mark.feature("verl-tool", "the finish tool is always there")
async def test_health_lists_the_tools_with_finish_last(client: Client):
    body = (await client.http.get("/health")).json()

    of_verl_tool = [
        "status",
        "concurrent_requests",
        "thread_pool_size",
        "active_tasks",
        "max_concurrent",
        "tools",
        "uptime_seconds",
    ]
    assert list(body) == [*of_verl_tool, "call_ids"]
    assert body["status"] == "healthy"
    assert body["tools"] == ["echo", "count", "finish"]


async def test_a_stopping_server_is_healthy_but_not_ready(client: Client):
    assert (await client.http.get("/readyz")).status_code == 200
    client.worker.stopping = True

    assert (await client.http.get("/readyz")).status_code == 503
    assert (await client.http.get("/health")).status_code == 200


async def test_the_requests_that_a_stopped_server_still_has_are_cancelled_and_release_their_claims():
    gate = Gate(tool_context())
    async with serving(gate) as client:
        request = asyncio.create_task(client.post(["t"], ["gate"], extra_fields=[{"call_id": "1"}]))
        await eventually(lambda: gate.num_waiting == 1)

        await client.worker.drain()

        assert request.done()
    assert client.store.claims == {}


async def test_the_numbers_of_calls_are_logged_when_they_have_changed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    caplog.set_level(logging.INFO, "turnmill.tool_server.app")
    sleeping, ticks = asyncio.Queue[float](), asyncio.Queue[None]()

    async def sleep(seconds: float) -> None:
        sleeping.put_nowait(seconds)
        await ticks.get()

    async def logged_next() -> list[tuple[int, int]]:
        caplog.clear()
        ticks.put_nowait(None)
        assert await sleeping.get() == 30
        return [(record.done, record.failed) for record in caplog.records if record.message == "Calls so far"]

    monkeypatch.setattr(asyncio, "sleep", sleep)
    raising = Raising(tool_context(), [ToolFailedError("down")])
    async with asyncio.timeout(5), serving(Echo(tool_context()), raising, log_interval=30) as client:
        logging_progress = asyncio.create_task(client.worker.log_progress())
        assert await sleeping.get() == 30
        before = await logged_next()
        await client.post(["t"], ["echo a"])
        after_one = await logged_next(), await logged_next()
        await client.post(["t"], ["raise"])
        after_two = await logged_next()
        logging_progress.cancel()

    assert (before, after_one, after_two) == ([], ([(1, 0)], []), [(1, 1)])


@pytest.mark.feature("verl-tool", "metrics as JSON")
async def test_metrics_have_prometheus_format_unless_json_is_accepted(client: Client):
    await client.post(["t"], ["count"])

    text = await client.http.get("/metrics")
    json = (await client.http.get("/metrics", headers={"Accept": "application/json"})).json()

    assert text.headers["content-type"].startswith("text/plain")
    assert 'turnmill_tool_calls_total{outcome="done",tool="count"} 1.0' in text.text
    assert "turnmill_tool_calls_in_flight 0.0" in text.text
    assert json["config"] == {"max_concurrent": 1024, "timeout": None, "hashing_enabled": True}
    assert json["tools_initialized"] == 3
    assert math.isfinite(json["uptime_seconds"])


async def test_unknown_methods_and_paths_are_refused(client: Client):
    assert (await client.http.get("/get_observation")).status_code == 405
    assert (await client.http.get("/")).status_code == 404


async def test_openapi_describes_the_body_of_get_observation(client: Client):
    description = (await client.http.get("/openapi.json")).json()

    body = description["paths"]["/get_observation"]["post"]["requestBody"]
    assert body["content"]["application/json"]["schema"]["required"] == ["trajectory_ids", "actions"]
    assert (await client.http.get("/docs")).status_code == 200
