"""The task as turnmill knows it: a tool that counts its calls, and a reward that any change changes."""

import asyncio
from typing import ClassVar

from chaos.effects import TOOL_SECONDS, reward_of, take_effect

from turnmill.tasks.arithmetic import Arithmetic
from turnmill.tasks.base import Answer, Task
from turnmill.tools.base import Tool, ToolCall, ToolResult
from turnmill.trajectories.base import Change


class Counter(Tool):
    """Returns for any action, after a delay, its number in the trajectory."""

    name: ClassVar[str] = "chaos.task:Counter"
    stateful: ClassVar[bool] = True

    def usage(self) -> str:
        """Return the usage in one line."""
        return "anything"

    def parse(self, action: str) -> str | None:
        """Return the whole action."""
        return action

    async def call(self, call: ToolCall) -> ToolResult:
        """Count."""
        number = int(call.state.get("number", b"0")) + 1
        await asyncio.sleep(TOOL_SECONDS / 2)
        take_effect(call.trajectory_id, number, str(call.idempotency_key))
        await asyncio.sleep(TOOL_SECONDS / 2)
        return ToolResult(str(number), change=Change(written={"number": str(number).encode()}))


class Chances(Arithmetic):
    """Arithmetic whose rewards depend on each word of a conversation, and not on what the policy has learned."""

    name: ClassVar[str] = "chaos.task:Chances"

    def reward(self, task: Task, answer: Answer) -> float:
        """Return a number between 0 and 1."""
        return reward_of(answer.whole)
