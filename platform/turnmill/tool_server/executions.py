"""Requests whose calls go on when the client has been answered, and which its repeats join."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from turnmill.core.errors import ToolError
from turnmill.tool_server.call_result import CallResult
from turnmill.tool_server.call_time import CallTime
from turnmill.tool_server.calls import Action, CallExecutor
from turnmill.trajectories.base import CallKey

Results = list[CallResult | ToolError]


@dataclass(frozen=True, slots=True)
class _Execution:
    task: asyncio.Task[Results]
    time: CallTime


class Executions:
    """Executes the calls of requests. A client that asks for an answer in time gets one, and sends a request again."""

    def __init__(self, executor: CallExecutor) -> None:
        self._executor = executor
        self._running: dict[tuple[CallKey, ...], _Execution] = {}

    @property
    def tasks(self) -> set[asyncio.Task[Results]]:
        """The calls of requests that go on, whether or not somebody waits for them."""
        return {execution.task for execution in self._running.values()}

    async def run(self, actions: Sequence[Action], time: CallTime, *, answer_at: float | None) -> Results:
        """Return the results of a request's calls; raises StoreUnavailableError or CallInProgressError at `answer_at`.

        That is in the event loop's time. Calls without an id cannot be sent again, and end with their request: at its
        deadline with TimeoutError.
        """
        keys = tuple(action.key for action in actions)
        if answer_at is None or not all(key.call_id for key in keys):
            return await self._executor.execute(actions, time)
        if (execution := self._running.get(keys)) is None:
            time.outlives = True
            execution = _Execution(asyncio.create_task(self._executor.execute(actions, time)), time)
            self._running[keys] = execution
            execution.task.add_done_callback(lambda task: self._end(keys, task))
        else:
            execution.time.extend(time.deadline)
        left_seconds = max(0.0, answer_at - asyncio.get_running_loop().time())
        done, _ = await asyncio.wait({execution.task}, timeout=left_seconds)
        if not done:
            raise execution.time.still_waiting()
        return execution.task.result()

    def _end(self, keys: tuple[CallKey, ...], task: asyncio.Task[Results]) -> None:
        del self._running[keys]
        if not task.cancelled():
            # Nobody may be there to hear of an error, which the repeat meets anew.
            task.exception()
