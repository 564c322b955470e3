"""verl's tools, with an end to every call and an eye on what fails under them."""

import asyncio
import time
from collections.abc import Awaitable, Iterator
from typing import Any
from uuid import uuid4

from verl.tools.base_tool import BaseTool
from verl.tools.function_tool import FunctionTool, normalize_function_tool_return
from verl.tools.schemas import ToolResponse

from turnmill.core.errors import EpisodeError, ToolCallConnectionError, ToolCallTimeoutError
from turnmill.jobs.multi_turn_agent import MultiTurnAgent
from turnmill.rollout.multi_turn.episode import CURRENT, Call
from turnmill.rollout.multi_turn.tool_results import ToolResult


def watched(tool: Any, agent: MultiTurnAgent) -> Any:
    """The tool, as verl's loops call it."""
    return _function(tool, agent) if isinstance(tool, FunctionTool) else WatchedTool(tool, agent)


class WatchedTool(BaseTool):
    """A tool whose calls end in time, and whose answers are kept."""

    def __init__(self, tool: BaseTool, agent: MultiTurnAgent) -> None:
        # verl's own prints the schema.
        self.config = tool.config
        self.tool_schema = tool.tool_schema
        self.name = tool.name
        self._tool = tool
        self._agent = agent
        self._calls: dict[str, tuple[Call, str | None]] = {}

    async def create(self, instance_id: str | None = None, **given: Any) -> tuple[str, ToolResponse]:
        """An instance for one call; none is made for a call that was answered before a restart."""
        call = CURRENT.get().call(self.name)
        made, response = None, ToolResponse()
        if call.answered is None:
            made, response = await _in_time(self._tool.create(instance_id, **given), call, self._agent)
        handle = uuid4().hex
        self._calls[handle] = (call, made)
        return handle, response

    async def execute(self, instance_id: str, parameters: dict[str, Any], **given: Any) -> tuple[Any, Any, Any]:
        """What the tool answers."""
        call, made = self._calls[instance_id]
        call.arguments = parameters
        if call.answered is None:
            returned = await _in_time(self._tool.execute(made, parameters, **given), call, self._agent)
            await CURRENT.get().answer(call, ToolResult(*returned))
        return _triple(call)

    async def release(self, instance_id: str, **given: Any) -> None:
        """Let go of the instance."""
        call, made = self._calls.pop(instance_id)
        if made is not None:
            await _in_time(self._tool.release(made, **given), call, self._agent)


def _function(tool: FunctionTool, agent: MultiTurnAgent) -> FunctionTool:
    async def call_it(**parameters: Any) -> tuple[Any, Any, Any]:
        call = CURRENT.get().call(tool.name)
        call.arguments = parameters
        if call.answered is None:
            returned = await _in_time(tool.call(parameters), call, agent)
            await CURRENT.get().answer(call, ToolResult(*normalize_function_tool_return(returned)))
        return _triple(call)

    return FunctionTool(name=tool.name, fn=call_it, tool_schema=tool.tool_schema, is_async=True)


def _triple(call: Call) -> tuple[Any, Any, Any]:
    assert call.answered is not None
    return call.answered.response, call.answered.reward, dict(call.answered.metrics or {})


async def _in_time(doing: Awaitable[Any], call: Call, agent: MultiTurnAgent) -> Any:
    """What comes of it; an infrastructure failure also ends the trajectory, if the job says so."""
    conversation = CURRENT.get()
    seconds, began = agent.tool_call_timeout, time.monotonic()
    try:
        with conversation.timing.measure("tools"):
            async with asyncio.timeout(seconds) as limit:
                return await doing
    except Exception as error:
        if agent.on_tool_failure == "fail" and (failure := _failure(error, call, seconds if limit.expired() else None)):
            conversation.fail(failure)
        if limit.expired():
            raise TimeoutError(f"no answer within {seconds:g} seconds") from error
        raise
    finally:
        call.seconds += time.monotonic() - began


def _failure(error: Exception, call: Call, seconds: float | None) -> EpisodeError | None:
    """The error as an end of the trajectory, if infrastructure lies behind it."""
    what = f"tool {call.tool!r}, call {call.number} of turn {call.turn}"
    if seconds is not None:
        return ToolCallTimeoutError(f"{what}: no answer within toolCallTimeout ({seconds:g} s)")
    for cause in _causes(error):
        if isinstance(cause, EpisodeError):
            return cause
        if isinstance(cause, TimeoutError):
            return ToolCallTimeoutError(f"{what}: {error!r}")
        if isinstance(cause, ConnectionError):
            return ToolCallConnectionError(f"{what}: {error!r}")
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from, however clients of HTTP have wrapped it."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        yield at
        at = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
