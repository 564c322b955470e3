"""The tool `base`: accepts anything and counts the calls of a trajectory, to try a server with."""

from typing import ClassVar

from turnmill.tools.base import Tool, ToolCall, ToolResult
from turnmill.tools.registry import register
from turnmill.trajectories.base import Change


@register
class TurnCounter(Tool):
    """Answers with the number of calls before this one."""

    name: ClassVar[str] = "base"
    stateful: ClassVar[bool] = True

    def usage(self) -> str:
        """Return one line on how to call it."""
        return "Base usage instructions"

    def parse(self, action: str) -> str | None:
        """Anything; its first ten characters."""
        return action[:10]

    async def call(self, call: ToolCall) -> ToolResult:
        """Count the call and end."""
        num_turns = int(call.state.get("turns", b"0"))
        return ToolResult(
            f"Base observation for {call.trajectory_id} in turn {num_turns}",
            done=True,
            change=Change(written={"turns": str(num_turns + 1).encode()}),
        )
