"""Execution of tool calls: each takes effect once, however often and on whatever server it is repeated."""

import asyncio
import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Protocol

from turnmill.core.errors import SandboxError, StaleClaimError, ToolError
from turnmill.observability.tool_metrics import NO_TOOL, CallOutcome, ToolMetrics
from turnmill.tool_server.call_result import FINISHED, CallResult, tool_error_result, unmatched_result
from turnmill.tool_server.call_time import CallTime
from turnmill.tool_server.locks import KeyedLocks
from turnmill.tool_server.tool_set import FINISH, ToolSet
from turnmill.tool_server.waiting import measure_waiting
from turnmill.tools.base import Tool, ToolCall, ToolResult
from turnmill.trajectories.base import CallKey, Change, Claim, Recorded, State, action_digest

log = logging.getLogger(__name__)

CALL_ID = "call_id"
AFTER_VERSION = "after_version"
IS_LAST_STEP = "is_last_step"

RELEASE_SECONDS = 2.0
"""Time limit for releasing a claim, so that an unavailable store does not delay the end of a call or server."""


class CallStore(Protocol):
    """Operations of the trajectory store that a call needs; deadlines are in the event loop's time."""

    async def begin(self, key: CallKey, tool: str, *, stateful: bool, deadline: float) -> Claim | Recorded:
        """Claim a call, or return the result that it already has."""
        ...

    async def commit(
        self, claim: Claim, result: bytes, change: Change | None = None, *, finishes: bool = False, deadline: float
    ) -> None:
        """Record result and change in one transaction; raises StaleClaimError if another has claimed the call since."""
        ...

    async def release(self, claim: Claim, *, deadline: float) -> None:
        """Release the claim of a call that had no effect."""
        ...

    async def finish(self, trajectory_id: str, *, deadline: float) -> None:
        """Delete the state of all tools; results of calls are kept for late repeats."""
        ...


@dataclass(frozen=True, slots=True)
class Action:
    """One action of a request."""

    trajectory_id: str
    text: str
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def key(self) -> CallKey:
        """Key of the call in the store."""
        call_id = self.extra.get(CALL_ID)
        named = None if call_id in (None, "") else str(call_id)
        after = str(self.extra.get(AFTER_VERSION) or "")
        return CallKey(self.trajectory_id, named, action_digest(self.text), after)


@dataclass(frozen=True, slots=True)
class ResolvedCall:
    """An action with the tool that it matches; without one if it finishes its trajectory or matches no tool."""

    action: Action
    tool: Tool | None = None
    parsed: str = ""
    finishes: bool = False

    @property
    def label(self) -> str:
        """Name of the tool in metrics and in the store."""
        return FINISH if self.finishes else self.tool.name if self.tool else NO_TOOL

    @property
    def is_ordered(self) -> bool:
        """True if it must wait for earlier calls of its trajectory."""
        return self.finishes or (self.tool is not None and self.tool.stateful)


class CallExecutor:
    """Executes the calls of a server's requests."""

    def __init__(
        self,
        tools: ToolSet,
        store: CallStore,
        metrics: ToolMetrics,
        *,
        done_if_invalid: bool = False,
        workers_per_tool: int = 32,
        store_wait_seconds: float = 15.0,
    ) -> None:
        self.tools = tools
        self._store = store
        self._metrics = metrics
        self._done_if_invalid = done_if_invalid
        self._workers_per_tool = workers_per_tool
        self._store_wait_seconds = store_wait_seconds
        self._locks = KeyedLocks()
        self.num_done = 0
        self.num_failed = 0

    async def execute(self, actions: Sequence[Action], time: CallTime | None = None) -> list[CallResult | ToolError]:
        """Execute the calls of a request concurrently, but calls of a trajectory that share state in the given order.

        The result of a call that fails is its error; the other calls are executed and recorded nevertheless. Calls that
        still run at the deadline are cancelled with TimeoutError, unless they outlive their request.
        """
        time = time or CallTime()
        calls = [self._resolve(action) for action in actions]
        semaphores = {call.label: asyncio.Semaphore(self._workers_per_tool) for call in calls}
        results: list[CallResult | ToolError] = [FINISHED] * len(calls)

        async def execute_in_order(indices: Sequence[int]) -> None:
            for position, index in enumerate(indices, start=1):
                async with semaphores[calls[index].label]:
                    results[index] = result = await self._execute_or_fail(calls[index], time)
                if isinstance(result, ToolError):
                    # A repeat of it after its successors would find the state that they left.
                    for later in indices[position:]:
                        results[later] = result
                    return

        async with asyncio.timeout_at(None if time.outlives else time.deadline), asyncio.TaskGroup() as group:
            for indices in _sequences(calls):
                group.create_task(execute_in_order(indices))
        return results

    def label(self, action: Action) -> str:
        """Return the name of the tool that takes an action."""
        return self._resolve(action).label

    def _resolve(self, action: Action) -> ResolvedCall:
        if self.tools.finishes(action.extra):
            return ResolvedCall(action, finishes=True)
        match = self.tools.match(action.text)
        return ResolvedCall(action) if match is None else ResolvedCall(action, *match)

    async def _execute_or_fail(self, call: ResolvedCall, time: CallTime) -> CallResult | ToolError:
        with self._measure(call) as measurement:
            try:
                result = await self._execute(call, measurement, time)
            except ToolError as error:
                measurement.outcome = "failed"
                self._metrics.failures.labels(error.cause).inc()
                self.num_failed += 1
                log.warning("Call failed", extra={"tool": call.label, "cause": error.cause, "error": str(error)})
                return error
            if call.finishes:
                await self.tools.forget(call.action.trajectory_id)
            self.num_done += 1
            return result

    async def _execute(self, call: ResolvedCall, measurement: "_Measurement", time: CallTime) -> CallResult:
        if call.tool is None and not call.finishes:
            measurement.outcome = "unmatched"
            return unmatched_result(self.tools.usage(), done=self._done_if_invalid)
        key = call.action.key
        if call.finishes and key.call_id is None:
            await self._store.finish(key.trajectory_id, deadline=time.store_deadline(self._store_wait_seconds))
            return FINISHED
        if call.tool is not None and not call.tool.stateful and key.call_id is None:
            return (await time.limit(self._run_tool(call, call.tool, {}, measurement)))[0]
        # Two calls of this server that would fence each other off wait here instead of in the store.
        async with self._locks.hold(_lock_key(call)):
            return await self._execute_once(call, measurement, time)

    async def _execute_once(self, call: ResolvedCall, measurement: "_Measurement", time: CallTime) -> CallResult:
        """Execute a call under a claim; if another server takes the claim over, return the result recorded there."""
        key = call.action.key
        stateful = call.tool is not None and call.tool.stateful
        for is_last_attempt in (key.call_id is None, True):
            with time.in_store():
                deadline = time.store_deadline(self._store_wait_seconds)
                begun = await self._store.begin(key, call.label, stateful=stateful, deadline=deadline)
            if isinstance(begun, Recorded):
                measurement.outcome = "replayed"
                self._metrics.replays.labels(call.label).inc()
                return CallResult.from_bytes(begun.result, begun.version)
            try:
                return await self._execute_claimed(call, begun, measurement, time)
            except StaleClaimError:
                self._metrics.fenced.inc()
                if is_last_attempt:
                    raise
            except BaseException:
                await self._release(begun)
                raise
        raise AssertionError("the last StaleClaimError is raised")

    async def _execute_claimed(
        self, call: ResolvedCall, claim: Claim, measurement: "_Measurement", time: CallTime
    ) -> CallResult:
        if call.tool is None:
            result, change = FINISHED, None
        else:
            result, change = await time.limit(self._run_tool(call, call.tool, claim.state, measurement))
        with time.in_store():
            deadline = time.commit_deadline(self._store_wait_seconds)
            await self._store.commit(claim, result.to_bytes(), change, finishes=call.finishes, deadline=deadline)
        return replace(result, version=claim.version_after)

    async def _run_tool(
        self, call: ResolvedCall, tool: Tool, state: State, measurement: "_Measurement"
    ) -> tuple[CallResult, Change | None]:
        action = call.action
        tool_call = ToolCall(
            action.trajectory_id, action.text, call.parsed, action.extra, state, action.key.idempotency_key
        )
        try:
            with self._metrics.run_seconds.labels(tool.name).time(), measure_waiting() as waiting:
                tool_result = await _call_with_retry(tool, tool_call)
            done, valid = bool(tool_result.done), bool(tool_result.valid)
            result = CallResult(tool_result.observation, done, valid, waiting_seconds=waiting.seconds)
            result.to_bytes()
        except ToolError:
            raise
        except Exception as error:
            log.exception("Tool raised an unexpected error", extra={"tool": tool.name})
            measurement.outcome = "tool_error"
            return tool_error_result(tool.name, error), None
        if not result.valid:
            measurement.outcome = "invalid"
        change = tool_result.change
        if tool.stateful and action.extra.get(IS_LAST_STEP):
            change = Change(forget=True)
        return result, change

    async def _release(self, claim: Claim) -> None:
        """Release a claim, so that another server can execute the call at once; if this fails, the claim expires."""
        try:
            await self._store.release(claim, deadline=asyncio.get_running_loop().time() + RELEASE_SECONDS)
        except ToolError as error:
            log.warning("Claim could not be released", extra={"tool": claim.tool, "error": str(error)})

    @contextmanager
    def _measure(self, call: ResolvedCall) -> Iterator["_Measurement"]:
        measurement = _Measurement()
        started = perf_counter()
        try:
            yield measurement
        except BaseException:
            measurement.outcome = "cancelled"
            raise
        finally:
            self._metrics.calls.labels(call.label, measurement.outcome).inc()
            self._metrics.call_seconds.labels(call.label).observe(perf_counter() - started)


@dataclass(slots=True)
class _Measurement:
    outcome: CallOutcome = "done"


async def _call_with_retry(tool: Tool, call: ToolCall) -> ToolResult:
    """Call a tool, and once more if the sandbox failed, as the call then had no effect."""
    try:
        return await tool.call(call)
    except SandboxError as error:
        log.warning("Sandbox failed; retrying once", extra={"tool": tool.name, "error": str(error)})
        return await tool.call(call)


def _lock_key(call: ResolvedCall) -> Hashable:
    key = call.action.key
    if call.tool is not None and not call.tool.stateful:
        return key
    return key.trajectory_id, call.label


def _sequences(calls: Sequence[ResolvedCall]) -> list[list[int]]:
    """Group the indices of calls into sequences that may run concurrently; calls of a sequence run in order."""
    single: list[list[int]] = []
    by_trajectory: dict[str, list[int]] = {}
    for index, call in enumerate(calls):
        if call.is_ordered:
            by_trajectory.setdefault(call.action.trajectory_id, []).append(index)
        else:
            single.append([index])
    return [*single, *by_trajectory.values()]
