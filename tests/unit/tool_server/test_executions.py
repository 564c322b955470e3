"""Calls that go on when their request has been answered."""

import asyncio
from collections.abc import Callable

import pytest

from support.tool_server import Gate, MemoryStore, tool_context
from turnmill.core.errors import CallInProgressError, CallTimeoutError, StoreUnavailableError
from turnmill.core.loop_time import give_up
from turnmill.observability.tool_metrics import ToolMetrics
from turnmill.tool_server.call_result import CallResult
from turnmill.tool_server.call_time import CallTime
from turnmill.tool_server.calls import Action, CallExecutor
from turnmill.tool_server.executions import Executions
from turnmill.tool_server.tool_set import ToolSet
from turnmill.trajectories.base import Change, Claim


class AwayStore(MemoryStore):
    """A store that takes no result until it is back."""

    def __init__(self) -> None:
        super().__init__()
        self.back = asyncio.Event()
        self.deadlines: list[float] = []

    async def commit(
        self, claim: Claim, result: bytes, change: Change | None = None, *, finishes: bool = False, deadline: float
    ) -> None:
        self.deadlines.append(deadline - asyncio.get_running_loop().time())
        await self.back.wait()
        await super().commit(claim, result, change, finishes=finishes, deadline=deadline)


class Server:
    """Executions of a gate's calls."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.gate = Gate(tool_context())
        self.store = store or MemoryStore()
        self.executions = Executions(CallExecutor(ToolSet([self.gate]), self.store, ToolMetrics(("gate",))))

    async def call(
        self, *, call_id: str | None = "1", answer: float | None = 0.01, deadline: float | None = None, **limits: float
    ) -> object:
        """Return the observation of a call, with times in seconds from now."""
        now = asyncio.get_running_loop().time()
        time = CallTime(
            None if deadline is None else now + deadline, **{name: now + value for name, value in limits.items()}
        )
        action = Action("t", "gate", {} if call_id is None else {"call_id": call_id})
        [result] = await self.executions.run([action], time, answer_at=None if answer is None else now + answer)
        if isinstance(result, CallResult):
            return result.observation
        raise result


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110 (there is no event to wait for)
            await asyncio.sleep(0)


async def test_a_repeat_joins_the_call_that_its_request_began():
    server = Server()
    with pytest.raises(CallInProgressError):
        await server.call()
    repeats = [asyncio.create_task(server.call(answer=60)) for _ in range(3)]
    await asyncio.sleep(0)
    server.gate.opened.set()

    assert await asyncio.gather(*repeats) == ["opened"] * 3
    assert server.store.operations == ["begin", "commit"]


async def test_a_call_that_ended_between_two_requests_is_answered_from_its_record():
    server = Server()
    with pytest.raises(CallInProgressError):
        await server.call()
    server.gate.opened.set()
    await until(lambda: not server.executions.tasks)

    assert await server.call(answer=60) == "opened"
    assert server.store.operations == ["begin", "commit", "begin"]


async def test_a_result_waits_for_the_store_and_is_not_made_again():
    store = AwayStore()
    server = Server(store)
    server.gate.opened.set()
    for _ in range(3):
        with pytest.raises(StoreUnavailableError):
            await server.call(deadline=0.02)
    store.back.set()

    assert await server.call() == "opened"
    assert store.operations == ["begin", "commit"]
    # The client's deadline is for the tool.
    assert store.deadlines == [pytest.approx(240, abs=5)]


async def test_a_tool_ends_at_the_deadline_and_its_claim_is_released():
    server = Server()

    with pytest.raises(CallTimeoutError):
        await server.call(answer=60, deadline=0.01)

    assert (server.gate.num_waiting, server.store.claims) == (0, {})


async def test_a_repeat_moves_the_deadline_but_not_beyond_the_servers_own():
    server = Server()
    with pytest.raises(CallInProgressError):
        await server.call(deadline=0.05, latest=0.3)
    repeat = asyncio.create_task(server.call(answer=60, deadline=60))
    await asyncio.sleep(0.1)
    assert server.gate.num_waiting == 1

    with pytest.raises(CallTimeoutError):
        await repeat


@pytest.mark.parametrize("limits", [{"call_id": None}, {"answer": None}])
async def test_a_call_that_cannot_be_sent_again_or_is_waited_for_ends_with_its_request(limits: dict[str, None]):
    server = Server()

    with pytest.raises(TimeoutError):
        await server.call(deadline=0.01, **limits)

    assert (server.gate.num_waiting, server.store.claims) == (0, {})


async def test_calls_that_go_on_release_their_claims_when_the_server_ends():
    server = Server()
    with pytest.raises(CallInProgressError):
        await server.call()

    [task] = server.executions.tasks
    await give_up(task)

    assert (server.gate.num_waiting, server.store.claims) == (0, {})


async def test_the_error_of_a_call_that_nobody_waits_for_is_met_by_its_repeat(caplog: pytest.LogCaptureFixture):
    server = Server()
    server.store.errors["commit"] = [StoreUnavailableError("away")]
    with pytest.raises(CallInProgressError):
        await server.call()
    server.gate.opened.set()
    await until(lambda: not server.executions.tasks)

    assert await server.call(answer=60) == "opened"
    assert "never retrieved" not in caplog.text
