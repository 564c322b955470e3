"""Tool calls: each takes effect once, whoever repeats it and wherever."""

import asyncio
import logging
import math
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from turnmill.core.errors import SandboxError, StaleClaimError, ToolError
from turnmill.observability.tool_metrics import NO_TOOL, CallOutcome, ToolMetrics
from turnmill.tool_server.answers import FINISHED, Answer, tool_failed, unmatched
from turnmill.tool_server.locks import KeyedLocks
from turnmill.tool_server.tool_set import FINISH, ToolSet
from turnmill.tools.base import Tool, ToolCall, ToolResult
from turnmill.trajectories.base import CallKey, Change, Claim, Recorded

log = logging.getLogger(__name__)

CALL_ID = "call_id"
LAST = "is_last_step"

# A store that is down must not keep a call, or a server that stops, from ending.
RELEASE_SECONDS = 2.0

# The store gives up just before the call, so that the answer tells what the call waited for.
STORE_FIRST_SECONDS = 0.05


class CallStore(Protocol):
    """What a call needs of the trajectory store; deadlines are in the event loop's time."""

    async def begin(self, key: CallKey, tool: str, *, stateful: bool, deadline: float) -> Claim | Recorded:
        """Claim a call, or get what it answered before."""
        ...

    async def commit(
        self, claim: Claim, result: bytes, change: Change | None = None, *, finishes: bool = False, deadline: float
    ) -> None:
        """Record the result and the change together; StaleClaimError if another has claimed the call since."""
        ...

    async def release(self, claim: Claim, *, deadline: float) -> None:
        """Give a claim back: nothing of the call took effect."""
        ...

    async def finish(self, trajectory_id: str, *, deadline: float) -> None:
        """Drop the state of all tools; results of calls stay for late repeats."""
        ...


@dataclass(frozen=True, slots=True)
class Action:
    """One item of a request."""

    trajectory_id: str
    text: str
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> CallKey:
        """How the store knows the call."""
        call_id = self.extra.get(CALL_ID)
        return CallKey(self.trajectory_id, None if call_id in (None, "") else str(call_id))


@dataclass(frozen=True, slots=True)
class _Meant:
    """An action and the tool that takes it; no tool where it finishes or nothing takes it."""

    action: Action
    tool: Tool | None = None
    parsed: str = ""
    finishes: bool = False

    @property
    def label(self) -> str:
        return FINISH if self.finishes else self.tool.name if self.tool else NO_TOOL

    @property
    def follows(self) -> bool:
        """Whether it has to wait for what came before it in its trajectory."""
        return self.finishes or (self.tool is not None and self.tool.stateful)


class Calls:
    """Does the calls of a server's requests."""

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

    async def do(self, actions: Sequence[Action], *, deadline: float | None = None) -> list[Answer | ToolError]:
        """Do the calls of one request at once; of a trajectory, those that share state in the order given.

        A call that fails leaves its error in its place: the others are done and recorded all the same. By the
        deadline, in the event loop's time, the calls that still run are given up with TimeoutError.
        """
        meant = [self._meaning(action) for action in actions]
        slots = {item.label: asyncio.Semaphore(self._workers_per_tool) for item in meant}
        answers: list[Answer | ToolError] = [FINISHED] * len(meant)

        async def do_in_order(indices: Sequence[int]) -> None:
            for index in indices:
                async with slots[meant[index].label]:
                    answers[index] = answer = await self._answer_or_error(meant[index], deadline)
                if isinstance(answer, ToolError):
                    # Done after its successors, it would find the state of another time.
                    for later in indices[indices.index(index) + 1 :]:
                        answers[later] = answer
                    return

        async with asyncio.timeout_at(deadline), asyncio.TaskGroup() as group:
            for indices in _orders(meant):
                group.create_task(do_in_order(indices))
        return answers

    def _meaning(self, action: Action) -> _Meant:
        if self.tools.finishes(action.extra):
            return _Meant(action, finishes=True)
        match = self.tools.match(action.text)
        return _Meant(action) if match is None else _Meant(action, *match)

    async def _answer_or_error(self, meant: _Meant, deadline: float | None) -> Answer | ToolError:
        with self._measured(meant) as measure:
            try:
                answer = await self._answer(meant, measure, _StoreTime(self._store_wait_seconds, deadline))
            except ToolError as error:
                measure.outcome = "failed"
                self._metrics.failures.labels(error.cause).inc()
                self.num_failed += 1
                log.warning("Call failed", extra={"tool": meant.label, "cause": error.cause, "error": str(error)})
                return error
            self.num_done += 1
            return answer

    async def _answer(self, meant: _Meant, measure: "_Measure", time_for: "_StoreTime") -> Answer:
        if meant.tool is None and not meant.finishes:
            measure.outcome = "unmatched"
            return unmatched(self.tools.usage(), done=self._done_if_invalid)
        key = meant.action.key
        if meant.finishes and key.call_id is None:
            await self._store.finish(key.trajectory_id, deadline=time_for.next())
            return FINISHED
        if meant.tool is not None and not meant.tool.stateful and key.call_id is None:
            return (await self._run(meant, meant.tool, {}, measure))[0]
        # Two calls that would fence each other off wait here instead of in the store.
        async with self._locks.hold(_turnstile(meant)):
            return await self._once(meant, measure, time_for)

    async def _once(self, meant: _Meant, measure: "_Measure", time_for: "_StoreTime") -> Answer:
        """Do a call under a claim; after losing it to another server, answer what that one recorded."""
        key = meant.action.key
        stateful = meant.tool is not None and meant.tool.stateful
        for last in (key.call_id is None, True):
            begun = await self._store.begin(key, meant.label, stateful=stateful, deadline=time_for.next())
            if isinstance(begun, Recorded):
                measure.outcome = "replayed"
                self._metrics.replays.labels(meant.label).inc()
                return Answer.from_bytes(begun.result)
            try:
                return await self._do_claimed(meant, begun, measure, time_for)
            except StaleClaimError:
                self._metrics.fenced.inc()
                if last:
                    raise
            except BaseException:
                await self._give_back(begun)
                raise
        raise AssertionError("the last loss is raised")

    async def _do_claimed(self, meant: _Meant, claim: Claim, measure: "_Measure", time_for: "_StoreTime") -> Answer:
        if meant.tool is None:
            answer, change = FINISHED, None
        else:
            answer, change = await self._run(meant, meant.tool, claim.state, measure)
        deadline = time_for.next()
        await self._store.commit(claim, answer.to_bytes(), change, finishes=meant.finishes, deadline=deadline)
        return answer

    async def _run(
        self, meant: _Meant, tool: Tool, state: Mapping[str, bytes], measure: "_Measure"
    ) -> tuple[Answer, Change | None]:
        action = meant.action
        call = ToolCall(action.trajectory_id, action.text, meant.parsed, action.extra, state)
        try:
            with self._metrics.run_seconds.labels(tool.name).time():
                result = await _call_twice_if_it_must(tool, call)
            answer = Answer(result.observation, done=bool(result.done), valid=bool(result.valid))
            answer.to_bytes()
        except ToolError:
            raise
        except Exception as error:
            log.exception("Tool raised an error of its own", extra={"tool": tool.name})
            measure.outcome = "tool_error"
            return tool_failed(tool.name, error), None
        if not answer.valid:
            measure.outcome = "invalid"
        change = result.change
        if tool.stateful and action.extra.get(LAST):
            change = Change(forget=True)
        return answer, change

    async def _give_back(self, claim: Claim) -> None:
        """Let another server do the call at once; if that fails, the claim runs out by itself."""
        try:
            await self._store.release(claim, deadline=_now() + RELEASE_SECONDS)
        except ToolError as error:
            log.warning("Claim could not be given back", extra={"tool": claim.tool, "error": str(error)})

    @contextmanager
    def _measured(self, meant: _Meant) -> Iterator["_Measure"]:
        measure = _Measure()
        begun = time.perf_counter()
        try:
            yield measure
        except BaseException:
            measure.outcome = "cancelled"
            raise
        finally:
            self._metrics.calls.labels(meant.label, measure.outcome).inc()
            self._metrics.call_seconds.labels(meant.label).observe(time.perf_counter() - begun)


@dataclass(slots=True)
class _Measure:
    outcome: CallOutcome = "done"


@dataclass(frozen=True, slots=True)
class _StoreTime:
    """How long an operation on the store may take: a fixed time, and never beyond the call's own deadline."""

    seconds: float
    deadline: float | None

    def next(self) -> float:
        """The deadline of an operation that begins at once."""
        return min(_now() + self.seconds, math.inf if self.deadline is None else self.deadline - STORE_FIRST_SECONDS)


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _call_twice_if_it_must(tool: Tool, call: ToolCall) -> ToolResult:
    """A sandbox that failed has done nothing, and is likely to be there again."""
    try:
        return await tool.call(call)
    except SandboxError as error:
        log.warning("Sandbox failed; trying once more", extra={"tool": tool.name, "error": str(error)})
        return await tool.call(call)


def _turnstile(meant: _Meant) -> Hashable:
    key = meant.action.key
    if meant.tool is not None and not meant.tool.stateful:
        return key
    return key.trajectory_id, meant.label


def _orders(meant: Sequence[_Meant]) -> list[list[int]]:
    """What runs side by side: single calls, and for each trajectory the calls that follow one another."""
    side_by_side: list[list[int]] = []
    by_trajectory: dict[str, list[int]] = {}
    for index, item in enumerate(meant):
        if item.follows:
            by_trajectory.setdefault(item.action.trajectory_id, []).append(index)
        else:
            side_by_side.append([index])
    return [*side_by_side, *by_trajectory.values()]
