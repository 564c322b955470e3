"""A trajectory store in memory and tools for tests of the tool server."""

import asyncio
from pathlib import Path
from typing import ClassVar

from turnmill.core.errors import StaleClaimError
from turnmill.sandboxes.base import SandboxResult, SandboxTask
from turnmill.tools.base import Tool, ToolCall, ToolContext, ToolResult
from turnmill.trajectories.base import CallKey, Change, Claim, Recorded


class MemoryStore:
    """A trajectory store in memory; `errors` has the errors that the next calls of an operation raise."""

    def __init__(self) -> None:
        self.states: dict[tuple[str, str], dict[str, bytes]] = {}
        self.records: dict[CallKey, bytes] = {}
        self.claims: dict[CallKey, Claim] = {}
        self.errors: dict[str, list[Exception]] = {}
        self.operations: list[str] = []
        self._token = 0

    async def begin(self, key: CallKey, tool: str, *, stateful: bool, deadline: float) -> Claim | Recorded:
        """Claim a call, or return its recorded result."""
        self._operate("begin")
        if key.call_id is not None and key in self.records:
            return Recorded(self.records[key])
        self._token += 1
        claim = Claim(key, tool, self._token, dict(self.states.get((key.trajectory_id, tool), {})))
        self.claims[key] = claim
        return claim

    async def commit(
        self, claim: Claim, result: bytes, change: Change | None = None, *, finishes: bool = False, deadline: float
    ) -> None:
        """Record a result, unless the claim is stale."""
        self._operate("commit")
        if self.claims.get(claim.key) is not claim:
            raise StaleClaimError("Another server has claimed the call.")
        del self.claims[claim.key]
        if claim.key.call_id is not None:
            self.records[claim.key] = result
        if change is not None:
            self._change(claim, change)
        if finishes:
            self._forget(claim.key.trajectory_id)

    async def release(self, claim: Claim, *, deadline: float) -> None:
        """Release a claim."""
        self._operate("release")
        if self.claims.get(claim.key) is claim:
            del self.claims[claim.key]

    async def finish(self, trajectory_id: str, *, deadline: float) -> None:
        """Drop all state of a trajectory."""
        self._operate("finish")
        self._forget(trajectory_id)

    def _forget(self, trajectory_id: str) -> None:
        self.states = {key: state for key, state in self.states.items() if key[0] != trajectory_id}

    def _operate(self, name: str) -> None:
        self.operations.append(name)
        if self.errors.get(name):
            raise self.errors[name].pop(0)

    def _change(self, claim: Claim, change: Change) -> None:
        key = claim.key.trajectory_id, claim.tool
        state = {} if change.forget else dict(claim.state)
        state.update(change.written)
        for name in change.removed:
            state.pop(name, None)
        if state:
            self.states[key] = state
        else:
            self.states.pop(key, None)


class NoSandbox:
    """A sandbox that refuses every task: for tools that need none."""

    async def run(self, task: SandboxTask) -> SandboxResult:
        """Raise an error."""
        raise AssertionError("this tool must run without a sandbox")

    async def close(self) -> None:
        """Do nothing."""


def tool_context() -> ToolContext:
    """Return a context for tools without a sandbox."""
    return ToolContext(NoSandbox())


class Echo(Tool):
    """`echo TEXT` returns TEXT; `echo` without a text is invalid."""

    name: ClassVar[str] = "echo"

    def usage(self) -> str:
        """Return the usage in one line."""
        return "echo TEXT"

    def parse(self, action: str) -> str | None:
        """Return the text after `echo`."""
        return action.removeprefix("echo").strip() if action.startswith("echo") else None

    async def call(self, call: ToolCall) -> ToolResult:
        """Return the text."""
        return ToolResult(call.parsed, valid=bool(call.parsed))


class Count(Tool):
    """`count` returns how often it was called in its trajectory."""

    name: ClassVar[str] = "count"
    stateful: ClassVar[bool] = True

    def usage(self) -> str:
        """Return the usage in one line."""
        return "count"

    def parse(self, action: str) -> str | None:
        """Return `count` for that action only."""
        return action if action == "count" else None

    async def call(self, call: ToolCall) -> ToolResult:
        """Count."""
        number = int(call.state.get("number", b"0")) + 1
        # Without a lock, concurrent calls of one trajectory would interleave here.
        await asyncio.sleep(0)
        return ToolResult(str(number), change=Change(written={"number": str(number).encode()}))


class SlowCounter(Tool):
    """Returns for any action, after a delay, how many calls of the trajectory took effect.

    Each call appends its trajectory's id to the file of the setting CALLS_FILE.
    """

    name: ClassVar[str] = "support.tool_server:SlowCounter"
    stateful: ClassVar[bool] = True
    seconds = 0.4

    def usage(self) -> str:
        """Return the usage in one line."""
        return "anything"

    def parse(self, action: str) -> str | None:
        """Return the whole action."""
        return action

    async def call(self, call: ToolCall) -> ToolResult:
        """Count."""
        self._record(call.trajectory_id)
        await asyncio.sleep(self.seconds)
        number = int(call.state.get("number", b"0")) + 1
        return ToolResult(str(number), change=Change(written={"number": str(number).encode()}))

    def _record(self, trajectory_id: str) -> None:
        with Path(self.context.settings["CALLS_FILE"]).open("a") as file:
            file.write(f"{trajectory_id}\n")


class Gate(Tool):
    """`gate` waits until it is opened, and counts the calls that wait."""

    name: ClassVar[str] = "gate"

    def __init__(self, context: ToolContext) -> None:
        super().__init__(context)
        self.opened = asyncio.Event()
        self.num_waiting = 0
        self.max_waiting = 0

    def usage(self) -> str:
        """Return the usage in one line."""
        return "gate"

    def parse(self, action: str) -> str | None:
        """Return `gate` for that action only."""
        return action if action == "gate" else None

    async def call(self, call: ToolCall) -> ToolResult:
        """Wait."""
        self.num_waiting += 1
        self.max_waiting = max(self.max_waiting, self.num_waiting)
        try:
            await self.opened.wait()
        finally:
            self.num_waiting -= 1
        return ToolResult("opened")


class Raising(Tool):
    """`raise` raises the given errors, one per call, and then succeeds."""

    name: ClassVar[str] = "raising"

    def __init__(self, context: ToolContext, errors: list[Exception]) -> None:
        super().__init__(context)
        self.errors = errors

    def usage(self) -> str:
        """Return the usage in one line."""
        return "raise"

    def parse(self, action: str) -> str | None:
        """Return `raise` for that action only."""
        return action if action == "raise" else None

    async def call(self, call: ToolCall) -> ToolResult:
        """Raise the next error."""
        if self.errors:
            raise self.errors.pop(0)
        return ToolResult("recovered")
