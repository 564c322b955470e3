"""The task of all systems: a tool that counts its calls, and a reward that any change of a conversation changes."""

import asyncio
import json
import os
import time
from pathlib import Path
from typing import ClassVar

from turnmill.tasks.arithmetic import Arithmetic
from turnmill.tasks.base import Answer, Task, stable_hash
from turnmill.tools.base import Tool, ToolCall, ToolResult
from turnmill.trajectories.base import Change

EFFECTS_VARIABLE = "CHAOS_EFFECTS"
"""Environment variable with the file to which each call of the tool adds a line."""

TOOL_SECONDS = 0.4
TURNS = 4


def reward_of(text: str) -> float:
    """Return a number between 0 and 1 by a hash of all that was said in a conversation."""
    return stable_hash(text) % 1000 / 999


def take_effect(trajectory: str, call: int) -> None:
    """Note a call's effect, which cannot be undone."""
    line = json.dumps({"trajectory": trajectory, "call": call, "time": time.monotonic()})
    with Path(os.environ[EFFECTS_VARIABLE]).open("a") as file:
        file.write(f"{line}\n")


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
        take_effect(call.trajectory_id, number)
        await asyncio.sleep(TOOL_SECONDS / 2)
        return ToolResult(str(number), change=Change(written={"number": str(number).encode()}))


class Chances(Arithmetic):
    """Arithmetic whose rewards depend on each word of a conversation, and not on what the policy has learned."""

    name: ClassVar[str] = "chaos.task:Chances"

    def reward(self, task: Task, answer: Answer) -> float:
        """Return a number between 0 and 1."""
        return reward_of(answer.whole)
