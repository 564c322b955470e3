"""Wrappers of verl's tools: calls have a timeout, results are journaled, infrastructure errors end the episode."""

import asyncio
import time
from collections.abc import Awaitable, Iterator, Mapping
from typing import TypeVar
from uuid import uuid4

from turnmill.core.errors import EpisodeError, ToolCallConnectionError, ToolCallError, ToolCallTimeoutError, ToolError
from turnmill.jobs.multi_turn_agent import MultiTurnAgent
from turnmill.rollout.multi_turn.episode import CURRENT_EPISODE, ToolCall
from turnmill.rollout.multi_turn.tool_results import ToolResult
from turnmill.rollout.multi_turn.verl_classes import (
    BaseTool,
    FunctionTool,
    ToolResponse,
    normalize_function_tool_return,
)

T = TypeVar("T")
Returned = tuple[ToolResponse, float | None, Mapping[str, object]]
"""The response, the reward and the metrics of a call."""


def wrap_tool(tool: BaseTool | FunctionTool, agent: MultiTurnAgent) -> BaseTool | FunctionTool:
    """Return the tool with a timeout for its calls, whose results are journaled."""
    return _wrap_function(tool, agent) if isinstance(tool, FunctionTool) else JournaledTool(tool, agent)


class JournaledTool(BaseTool):
    """A tool whose calls have a timeout, and whose results are journaled."""

    def __init__(self, tool: BaseTool, agent: MultiTurnAgent) -> None:
        # verl's own constructor prints the schema.
        self.config = tool.config
        self.tool_schema = tool.tool_schema
        self.name = tool.name
        self._tool = tool
        self._agent = agent
        self._calls: dict[str, tuple[ToolCall, str | None]] = {}

    async def create(self, instance_id: str | None = None, **kwargs: object) -> tuple[str, ToolResponse]:
        """Create an instance for one call, unless its result is replayed."""
        call = CURRENT_EPISODE.get().begin_tool_call(self.name)
        tool_instance_id, response = None, ToolResponse()
        if call.result is None:
            creation = self._tool.create(instance_id, **kwargs)
            tool_instance_id, response = await _with_timeout(creation, call, self._agent)
        call_id = uuid4().hex
        self._calls[call_id] = (call, tool_instance_id)
        return call_id, response

    async def execute(self, instance_id: str, parameters: dict[str, object], **kwargs: object) -> Returned:
        """Return the tool's response, reward and metrics."""
        call, tool_instance_id = self._calls[instance_id]
        call.arguments = parameters
        if call.result is None:
            execution = self._tool.execute(tool_instance_id, parameters, **kwargs)  # type: ignore[arg-type]
            returned = await _with_timeout(execution, call, self._agent)
            await CURRENT_EPISODE.get().record_tool_result(call, ToolResult(*returned))
        return _returned(call)

    async def release(self, instance_id: str, **kwargs: object) -> None:
        """Drop the instance."""
        call, tool_instance_id = self._calls.pop(instance_id)
        if tool_instance_id is not None:
            await _with_timeout(self._tool.release(tool_instance_id, **kwargs), call, self._agent)


def _wrap_function(tool: FunctionTool, agent: MultiTurnAgent) -> FunctionTool:
    async def call_function(**parameters: object) -> Returned:
        call = CURRENT_EPISODE.get().begin_tool_call(tool.name)
        call.arguments = parameters
        if call.result is None:
            returned = await _with_timeout(tool.call(parameters), call, agent)
            result = ToolResult(*normalize_function_tool_return(returned))
            await CURRENT_EPISODE.get().record_tool_result(call, result)
        return _returned(call)

    return FunctionTool(name=tool.name, fn=call_function, tool_schema=tool.tool_schema, is_async=True)


def _returned(call: ToolCall) -> Returned:
    assert call.result is not None
    return call.result.response, call.result.reward, dict(call.result.metrics or {})


async def _with_timeout(operation: Awaitable[T], call: ToolCall, agent: MultiTurnAgent) -> T:
    """Return the result of the operation; an infrastructure error also fails the episode, if the job says so."""
    episode = CURRENT_EPISODE.get()
    timeout_seconds, started = agent.tool_call_timeout, time.monotonic()
    try:
        with episode.timing.measure("tools"):
            async with asyncio.timeout(timeout_seconds) as timeout:
                return await operation
    except Exception as error:
        expired_after = timeout_seconds if timeout.expired() else None
        if agent.on_tool_failure == "fail" and (failure := _episode_error(error, call, expired_after)):
            episode.fail(failure)
        if timeout.expired():
            raise TimeoutError(f"no answer within {timeout_seconds:g} seconds") from error
        raise
    finally:
        call.seconds += time.monotonic() - started


def _episode_error(error: Exception, call: ToolCall, expired_after: float | None) -> EpisodeError | None:
    """Return the error as one that ends the episode; None if infrastructure is not its cause."""
    where = f"tool {call.tool!r}, call {call.number} of turn {call.turn}"
    if expired_after is not None:
        return ToolCallTimeoutError(f"{where}: no answer within toolCallTimeout ({expired_after:g} s)")
    for cause in _causes(error):
        if isinstance(cause, EpisodeError):
            return cause
        if isinstance(cause, ToolError):
            return ToolCallError(f"{where}: {cause}")
        if isinstance(cause, TimeoutError):
            return ToolCallTimeoutError(f"{where}: {error!r}")
        if isinstance(cause, ConnectionError):
            return ToolCallConnectionError(f"{where}: {error!r}")
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes, in whatever way HTTP clients have wrapped them."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
