import asyncio
from collections.abc import Callable

import pytest

from turnmill.core.errors import SandboxError, StaleClaimError, StoreUnavailableError, ToolError, ToolFailedError
from turnmill.observability.tool_metrics import ToolMetrics
from turnmill.testing.tool_server import Count, Echo, Gate, MemoryStore, Raising, tool_context
from turnmill.tool_server.answers import Answer
from turnmill.tool_server.calls import Action, Calls
from turnmill.tool_server.tool_set import ToolSet
from turnmill.tools.base import Tool
from turnmill.trajectories.base import CallKey


class Server:
    """Calls with their store and metrics; two servers may share a store."""

    def __init__(self, *tools: Tool, store: MemoryStore | None = None, **settings: object) -> None:
        self.store = store or MemoryStore()
        self.metrics = ToolMetrics(tuple(tool.name for tool in tools))
        self.calls = Calls(ToolSet(tools), self.store, self.metrics, **settings)

    async def do(self, *actions: Action, seconds: float | None = None) -> list[Answer | ToolError]:
        deadline = None if seconds is None else asyncio.get_running_loop().time() + seconds
        return await self.calls.do(actions, deadline=deadline)

    async def observations(self, *actions: Action) -> list[object]:
        answers = await self.do(*actions)
        assert all(isinstance(answer, Answer) for answer in answers), answers
        return [answer.observation for answer in answers]

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
        while not holds():  # noqa: ASYNC110 (what is awaited tells nobody)
            await asyncio.sleep(0)


async def test_answers_come_in_the_order_of_the_actions():
    server = Server(echo(), count())

    assert await server.observations(action("count"), action("echo a"), action("count", "u"), action("echo b")) == [
        "1",
        "a",
        "1",
        "b",
    ]


async def test_calls_of_one_request_run_at_once():
    gate = Gate(tool_context())
    request = asyncio.create_task(Server(gate).do(*[action("gate", str(n)) for n in range(4)]))

    await eventually(lambda: gate.num_waiting == 4)

    gate.opened.set()
    assert len(await request) == 4


async def test_no_more_calls_of_a_request_run_at_once_than_workers_per_tool():
    gate = Gate(tool_context())
    request = asyncio.create_task(Server(gate, workers_per_tool=2).do(*[action("gate", str(n)) for n in range(8)]))
    await eventually(lambda: gate.num_waiting == 2)

    gate.opened.set()
    await request

    assert gate.most_waiting == 2


async def test_actions_of_one_trajectory_see_one_anothers_state_in_order():
    assert await Server(count()).observations(*[action("count")] * 5) == ["1", "2", "3", "4", "5"]


async def test_a_call_without_call_id_to_a_tool_without_state_leaves_the_store_alone():
    server = Server(echo())

    await server.do(action("echo a"))

    assert server.store.operations == []


async def test_a_repeat_gets_the_recorded_answer_and_changes_nothing():
    server = Server(count())

    first = await server.do(action("count", call_id="1"))
    again = await server.do(action("count", call_id="1"))

    assert again == first
    assert await server.observations(action("count", call_id="2")) == ["2"]
    assert server.value("turnmill_tool_replays_total", tool="count") == 1


async def test_a_repeat_on_another_server_gets_the_recorded_answer():
    first = Server(count())
    second = Server(count(), store=first.store)

    await first.do(action("count", call_id="1"))

    assert await second.observations(action("count", call_id="1")) == ["1"]
    assert await second.observations(action("count", call_id="2")) == ["2"]


async def test_calls_without_call_id_are_never_repeats():
    assert await Server(count()).observations(action("count"), action("count", call_id="")) == ["1", "2"]


async def test_the_same_call_twice_at_once_is_done_once():
    gate = Gate(tool_context())
    server = Server(gate)
    twice = [asyncio.create_task(server.do(action("gate", call_id="1"))) for _ in range(2)]
    await eventually(lambda: gate.num_waiting == 1)

    gate.opened.set()
    first, second = await asyncio.gather(*twice)

    assert first == second
    assert gate.most_waiting == 1
    assert server.value("turnmill_tool_replays_total", tool="gate") == 1


async def test_a_server_that_lost_its_claim_answers_what_the_other_recorded():
    gate = Gate(tool_context())
    slow, store = Server(gate), MemoryStore()
    slow = Server(gate, store=store)
    other = Server(Raising(tool_context(), []), store=store)
    call = asyncio.create_task(slow.do(action("gate", call_id="1")))
    await eventually(lambda: gate.num_waiting == 1)

    await other.do(action("raise", call_id="1"))
    gate.opened.set()

    assert (await call)[0] == Answer("recovered", done=False, valid=True)
    assert slow.value("turnmill_tool_fenced_writers_total") == 1


async def test_a_call_that_loses_its_claim_twice_fails():
    server = Server(count())
    server.store.errors["commit"] = [StaleClaimError("lost"), StaleClaimError("lost again")]

    [answer] = await server.do(action("count", call_id="1"))

    assert isinstance(answer, StaleClaimError)
    assert server.store.states == {}


async def test_a_failed_call_gives_its_claim_back_and_succeeds_when_it_is_repeated():
    server = Server(Raising(tool_context(), [ToolFailedError("The retriever is down.")]))

    [failed] = await server.do(action("raise", call_id="1"))

    assert isinstance(failed, ToolFailedError)
    assert server.store.claims == {}
    assert await server.observations(action("raise", call_id="1")) == ["recovered"]
    assert server.value("turnmill_tool_failures_total", cause="tool") == 1


async def test_the_others_of_a_request_are_recorded_when_one_fails():
    server = Server(Raising(tool_context(), [ToolFailedError("down")]), count())

    answers = await server.do(action("raise", "t", call_id="1"), action("count", "u", call_id="1"))

    assert isinstance(answers[0], ToolFailedError)
    assert server.store.records.keys() == {CallKey("u", "1")}
    assert await server.observations(action("count", "u", call_id="1")) == ["1"]


async def test_what_follows_a_failed_call_in_its_trajectory_is_not_done():
    server = Server(count())
    server.store.errors["begin"] = [StoreUnavailableError("down")]

    answers = await server.do(action("count", call_id="1"), action("count", call_id="2"))

    assert [type(answer) for answer in answers] == [StoreUnavailableError] * 2
    assert server.store.operations == ["begin"]


async def test_a_sandbox_that_fails_is_tried_once_more():
    server = Server(Raising(tool_context(), [SandboxError("gone")]))

    assert await server.observations(action("raise")) == ["recovered"]


async def test_a_sandbox_that_fails_twice_fails_the_call():
    server = Server(Raising(tool_context(), [SandboxError("gone"), SandboxError("gone")]))

    [answer] = await server.do(action("raise"))

    assert isinstance(answer, SandboxError)
    assert server.value("turnmill_tool_calls_total", tool="raising", outcome="failed") == 1


async def test_an_error_of_the_tools_own_is_an_answer_that_ends_the_trajectory():
    server = Server(Raising(tool_context(), [KeyError("x")]), echo())

    answers = await server.do(action("raise"), action("echo fine"))

    error = {"obs": "", "error": "Tool processing failed: 'x'", "tool_type": "raising"}
    assert answers == [Answer(error, done=True, valid=False), Answer("fine", done=False, valid=True)]


async def test_calls_that_do_not_end_by_the_deadline_are_given_up_and_may_be_repeated():
    gate = Gate(tool_context())
    server = Server(gate)

    with pytest.raises(TimeoutError):
        await server.do(action("gate", call_id="1"), seconds=0.01)

    assert gate.num_waiting == 0
    assert server.store.claims == {}
    gate.opened.set()
    assert await server.observations(action("gate", call_id="1")) == ["opened"]


async def test_an_action_that_no_tool_takes_is_told_what_there_is():
    server = Server(echo(), done_if_invalid=True)

    assert await server.do(action("hello")) == [
        Answer(
            {
                "obs": "",
                "invalid_reason": "No valid tool found for action",
                "available_tools": "Available tools:\n• echo: echo TEXT",
            },
            done=True,
            valid=False,
        )
    ]


async def test_an_action_that_a_tool_refuses_is_invalid_and_goes_on():
    server = Server(echo())

    assert await server.do(action("echo")) == [Answer("", done=False, valid=False)]
    assert server.value("turnmill_tool_calls_total", tool="echo", outcome="invalid") == 1


@pytest.mark.parametrize("ids", [{}, {"call_id": "last"}])
async def test_finish_forgets_the_trajectory_and_no_other(ids: dict[str, str]):
    server = Server(count())
    await server.do(action("count"), action("count", "other"))

    assert await server.do(action("anything", finish=True, **ids)) == [Answer("", done=True, valid=True)]

    assert await server.observations(action("count"), action("count", "other")) == ["1", "2"]


async def test_a_repeated_finish_does_not_forget_what_came_after_it():
    server = Server(count())
    await server.do(action("", finish=True, call_id="f"))
    await server.do(action("count"))

    await server.do(action("", finish=True, call_id="f"))

    assert await server.observations(action("count")) == ["2"]


async def test_the_last_step_drops_the_state_of_its_tool():
    server = Server(count())

    assert await server.observations(action("count"), action("count", is_last_step=True)) == ["1", "2"]

    assert await server.observations(action("count")) == ["1"]


async def test_an_observation_that_is_no_json_is_an_error_of_the_tool():
    class Odd(Echo):
        async def call(self, call):
            return type(await super().call(call))({"obs": "", "reward": float("nan")})

    [answer] = await Server(Odd(tool_context())).do(action("echo"))

    assert answer.done
    assert answer.observation["error"].startswith("Tool processing failed: ")


async def test_half_a_surrogate_pair_passes_through_the_record():
    server = Server(echo())

    first = await server.do(action("echo \ud800", call_id="1"))

    assert await server.do(action("echo \ud800", call_id="1")) == first


async def test_no_lock_is_left():
    server = Server(count())

    await server.do(*[action("count", str(n), call_id="1") for n in range(10)])

    assert len(server.calls._locks) == 0
