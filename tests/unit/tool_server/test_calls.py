import asyncio
from collections.abc import Callable

import pytest

from support.tool_server import Count, Echo, Gate, MemoryStore, Raising, tool_context
from turnmill.core.errors import SandboxError, StaleClaimError, StoreUnavailableError, ToolError, ToolFailedError
from turnmill.observability.tool_metrics import ToolMetrics
from turnmill.tool_server.call_result import CallResult
from turnmill.tool_server.call_time import CallTime
from turnmill.tool_server.calls import Action, CallExecutor
from turnmill.tool_server.tool_set import ToolSet
from turnmill.tools.base import Tool, ToolCall, ToolContext, ToolResult
from turnmill.trajectories.base import CallKey


class Server:
    """A CallExecutor with its store and metrics; two servers may share a store."""

    def __init__(self, *tools: Tool, store: MemoryStore | None = None, **settings: object) -> None:
        self.store = store or MemoryStore()
        self.metrics = ToolMetrics(tuple(tool.name for tool in tools))
        self.executor = CallExecutor(ToolSet(tools), self.store, self.metrics, **settings)

    async def execute(self, *actions: Action, seconds: float | None = None) -> list[CallResult | ToolError]:
        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
        return await self.executor.execute(actions, CallTime(deadline))

    async def observations(self, *actions: Action) -> list[object]:
        results = await self.execute(*actions)
        assert all(isinstance(result, CallResult) for result in results), results
        return [result.observation for result in results]

    def value(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


def action(text: str, trajectory: str = "t", **extra: object) -> Action:
    return Action(trajectory, text, extra)


def echo() -> Echo:
    return Echo(tool_context())


def count() -> Count:
    return Count(tool_context())


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110 (there is no event to wait for)
            await asyncio.sleep(0)


@pytest.mark.feature("verl-tool", "order of results")
async def test_results_come_in_the_order_of_the_actions():
    server = Server(echo(), count())

    assert await server.observations(action("count"), action("echo a"), action("count", "u"), action("echo b")) == [
        "1",
        "a",
        "1",
        "b",
    ]


async def test_calls_of_one_request_run_at_once():
    gate = Gate(tool_context())
    request = asyncio.create_task(Server(gate).execute(*[action("gate", str(n)) for n in range(4)]))

    await eventually(lambda: gate.num_waiting == 4)

    gate.opened.set()
    assert len(await request) == 4


@pytest.mark.feature("verl-tool", "workers of a tool")
async def test_no_more_calls_of_a_request_run_at_once_than_workers_per_tool():
    gate = Gate(tool_context())
    request = asyncio.create_task(Server(gate, workers_per_tool=2).execute(*[action("gate", str(n)) for n in range(8)]))
    await eventually(lambda: gate.num_waiting == 2)

    gate.opened.set()
    await request

    assert gate.max_waiting == 2


@pytest.mark.feature("verl-tool", "state of each trajectory")
async def test_actions_of_one_trajectory_share_state_in_order():
    assert await Server(count()).observations(*[action("count")] * 5) == ["1", "2", "3", "4", "5"]


async def test_a_call_without_call_id_to_a_stateless_tool_does_not_use_the_store():
    server = Server(echo())

    await server.execute(action("echo a"))

    assert server.store.operations == []


async def test_a_repeat_gets_the_recorded_answer_and_changes_nothing():
    server = Server(count())

    first = await server.execute(action("count", call_id="1"))
    again = await server.execute(action("count", call_id="1"))

    assert again == first
    assert await server.observations(action("count", call_id="2")) == ["2"]
    assert server.value("turnmill_tool_replays_total", tool="count") == 1


class Keys(Echo):
    """Answers with the key of its call, and fails at first."""

    failures = 1

    async def call(self, call: ToolCall) -> ToolResult:
        self.seen = [*getattr(self, "seen", []), call.idempotency_key]
        if len(self.seen) <= self.failures:
            raise ToolFailedError("not yet")
        return ToolResult(str(call.idempotency_key))


async def test_a_call_that_is_executed_again_has_the_key_that_it_had():
    tool = Keys(tool_context())
    store = MemoryStore()

    await Server(tool, store=store).execute(action("echo a", call_id="1"))
    await Server(tool, store=store).execute(action("echo a", call_id="1"))

    first, *repeats = tool.seen
    assert len(first) == 32
    assert set(repeats) == {first}


@pytest.mark.parametrize(
    "other",
    [action("echo a", call_id="2"), action("echo b", call_id="1"), action("echo a", "u", call_id="1")],
    ids=["call", "action", "trajectory"],
)
async def test_another_call_has_another_key(other):
    tool = Keys(tool_context())
    tool.failures = 0

    keys = [*await Server(tool).observations(action("echo a", call_id="1")), *await Server(tool).observations(other)]

    assert len(set(keys)) == 2


async def test_a_call_without_call_id_has_no_key():
    tool = Keys(tool_context())
    tool.failures = 0

    assert await Server(tool).observations(action("echo a")) == ["None"]


async def test_a_repeat_on_another_server_gets_the_recorded_answer():
    first = Server(count())
    second = Server(count(), store=first.store)

    await first.execute(action("count", call_id="1"))

    assert await second.observations(action("count", call_id="1")) == ["1"]
    assert await second.observations(action("count", call_id="2")) == ["2"]


async def test_calls_without_call_id_are_never_repeats():
    assert await Server(count()).observations(action("count"), action("count", call_id="")) == ["1", "2"]


async def test_concurrent_repeats_of_a_call_execute_it_once():
    gate = Gate(tool_context())
    server = Server(gate)
    twice = [asyncio.create_task(server.execute(action("gate", call_id="1"))) for _ in range(2)]
    await eventually(lambda: gate.num_waiting == 1)

    gate.opened.set()
    first, second = await asyncio.gather(*twice)

    assert first == second
    assert gate.max_waiting == 1
    assert server.value("turnmill_tool_replays_total", tool="gate") == 1


async def test_a_server_that_lost_its_claim_returns_the_other_servers_result():
    gate = Gate(tool_context())
    slow, store = Server(gate), MemoryStore()
    slow = Server(gate, store=store)
    other = Server(Raising(tool_context(), []), store=store)
    call = asyncio.create_task(slow.execute(action("gate", call_id="1")))
    await eventually(lambda: gate.num_waiting == 1)

    await other.execute(action("raise", call_id="1"))
    gate.opened.set()

    assert (await call)[0] == CallResult("recovered", done=False, valid=True)
    assert slow.value("turnmill_tool_fenced_writers_total") == 1


async def test_a_call_that_loses_its_claim_twice_fails():
    server = Server(count())
    server.store.errors["commit"] = [StaleClaimError("lost"), StaleClaimError("lost again")]

    [result] = await server.execute(action("count", call_id="1"))

    assert isinstance(result, StaleClaimError)
    assert server.store.states == {}


async def test_a_failed_call_releases_its_claim_and_succeeds_when_repeated():
    server = Server(Raising(tool_context(), [ToolFailedError("The retriever is down.")]))

    [failed] = await server.execute(action("raise", call_id="1"))

    assert isinstance(failed, ToolFailedError)
    assert server.store.claims == {}
    assert await server.observations(action("raise", call_id="1")) == ["recovered"]
    assert server.value("turnmill_tool_failures_total", cause="tool") == 1


async def test_other_calls_of_a_request_are_recorded_when_one_fails():
    server = Server(Raising(tool_context(), [ToolFailedError("down")]), count())

    results = await server.execute(action("raise", "t", call_id="1"), action("count", "u", call_id="1"))

    assert isinstance(results[0], ToolFailedError)
    assert server.store.records.keys() == {CallKey("u", "1")}
    assert await server.observations(action("count", "u", call_id="1")) == ["1"]


async def test_calls_after_a_failed_one_of_their_trajectory_are_not_executed():
    server = Server(count())
    server.store.errors["begin"] = [StoreUnavailableError("down")]

    results = await server.execute(action("count", call_id="1"), action("count", call_id="2"))

    assert [type(result) for result in results] == [StoreUnavailableError] * 2
    assert server.store.operations == ["begin"]


async def test_a_sandbox_failure_is_retried_once():
    server = Server(Raising(tool_context(), [SandboxError("gone")]))

    assert await server.observations(action("raise")) == ["recovered"]


async def test_a_sandbox_that_fails_twice_fails_the_call():
    server = Server(Raising(tool_context(), [SandboxError("gone"), SandboxError("gone")]))

    [result] = await server.execute(action("raise"))

    assert isinstance(result, SandboxError)
    assert server.value("turnmill_tool_calls_total", tool="raising", outcome="failed") == 1


@pytest.mark.feature("verl-tool", "a tool that crashes")
async def test_an_unexpected_error_of_a_tool_ends_the_trajectory():
    server = Server(Raising(tool_context(), [KeyError("x")]), echo())

    results = await server.execute(action("raise"), action("echo fine"))

    error = {"obs": "", "error": "Tool processing failed: 'x'", "tool_type": "raising"}
    assert results == [CallResult(error, done=True, valid=False), CallResult("fine", done=False, valid=True)]


async def test_calls_past_the_deadline_are_cancelled_and_may_be_repeated():
    gate = Gate(tool_context())
    server = Server(gate)

    with pytest.raises(TimeoutError):
        await server.execute(action("gate", call_id="1"), seconds=0.01)

    assert gate.num_waiting == 0
    assert server.store.claims == {}
    gate.opened.set()
    assert await server.observations(action("gate", call_id="1")) == ["opened"]


@pytest.mark.feature("verl-tool", "an action that no tool takes")
@pytest.mark.feature("verl-tool", "usage instructions")
async def test_an_unmatched_action_gets_the_usage_of_the_tools():
    server = Server(echo(), done_if_invalid=True)

    assert await server.execute(action("hello")) == [
        CallResult(
            {
                "obs": "",
                "invalid_reason": "No valid tool found for action",
                "available_tools": "Available tools:\n• echo: echo TEXT",
            },
            done=True,
            valid=False,
        )
    ]


async def test_an_action_refused_by_its_tool_is_invalid_and_not_done():
    server = Server(echo())

    assert await server.execute(action("echo")) == [CallResult("", done=False, valid=False)]
    assert server.value("turnmill_tool_calls_total", tool="echo", outcome="invalid") == 1


class Keeping(Echo):
    """Keeps the trajectories that it was told to forget; raises for one that it does not know."""

    def __init__(self, context: ToolContext) -> None:
        super().__init__(context)
        self.forgotten: list[str] = []

    async def forget(self, trajectory_id: str) -> None:
        self.forgotten.append(trajectory_id)
        raise KeyError(trajectory_id)


@pytest.mark.parametrize("ids", [{}, {"call_id": "f"}])
async def test_at_the_end_of_a_trajectory_every_tool_forgets_it(ids: dict[str, str]):
    one, other = Keeping(tool_context()), Keeping(tool_context())
    server = Server(one, other)
    await server.execute(action("echo a"))

    assert await server.execute(action("", finish=True, **ids)) == [CallResult("", done=True, valid=True)]

    assert (one.forgotten, other.forgotten) == (["t"], ["t"])


@pytest.mark.feature("verl-tool", "finish drops the state of a trajectory")
@pytest.mark.parametrize("ids", [{}, {"call_id": "last"}])
async def test_finish_drops_only_the_state_of_its_trajectory(ids: dict[str, str]):
    server = Server(count())
    await server.execute(action("count"), action("count", "other"))

    assert await server.execute(action("anything", finish=True, **ids)) == [CallResult("", done=True, valid=True)]

    assert await server.observations(action("count"), action("count", "other")) == ["1", "2"]


async def test_a_repeated_finish_does_not_drop_later_state():
    server = Server(count())
    await server.execute(action("", finish=True, call_id="f"))
    await server.execute(action("count"))

    await server.execute(action("", finish=True, call_id="f"))

    assert await server.observations(action("count")) == ["2"]


@pytest.mark.feature("verl-tool", "the last step drops the state of its tool")
async def test_the_last_step_drops_the_state_of_its_tool():
    server = Server(count())

    assert await server.observations(action("count"), action("count", is_last_step=True)) == ["1", "2"]

    assert await server.observations(action("count")) == ["1"]


async def test_an_observation_that_is_not_json_is_an_error_of_the_tool():
    class Odd(Echo):
        async def call(self, call):
            return type(await super().call(call))({"obs": "", "reward": float("nan")})

    [result] = await Server(Odd(tool_context())).execute(action("echo"))

    assert result.done
    assert result.observation["error"].startswith("Tool processing failed: ")


async def test_half_a_surrogate_pair_survives_recording():
    server = Server(echo())

    first = await server.execute(action("echo \ud800", call_id="1"))

    assert await server.execute(action("echo \ud800", call_id="1")) == first


async def test_no_lock_remains_after_the_calls():
    server = Server(count())

    await server.execute(*[action("count", str(n), call_id="1") for n in range(10)])

    assert len(server.executor._locks) == 0
