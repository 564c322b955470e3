"""The tool `base`: accepts any action and counts the calls of a trajectory, for trying out a server."""

from typing import ClassVar

from turnmill.tools.base import Tool, ToolCall, ToolResult
from turnmill.tools.registry import register
from turnmill.trajectories.base import Change


@register
class TurnCounter(Tool):
    """Returns the number of earlier calls."""

    name: ClassVar[str] = "base"
    stateful: ClassVar[bool] = True

    def usage(self) -> str:
        """Return one line on how to call it."""
        return "Base usage instructions"

    def parse(self, action: str) -> str | None:
        """Accept any action; return its first ten characters."""
        return action[:10]

    async def call(self, call: ToolCall) -> ToolResult:
        """Count the call and end the trajectory."""
        num_turns = int(call.state.get("turns", b"0"))
        return ToolResult(
            f"Base observation for {call.trajectory_id} in turn {num_turns}",
            done=True,
            change=Change(written={"turns": str(num_turns + 1).encode()}),
        )
