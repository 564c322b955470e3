"""The tool that ends a trajectory: it is chosen by the flag `finish`, never by what an action says."""

from typing import ClassVar

from turnmill.tools.base import Tool, ToolCall, ToolResult
from turnmill.tools.registry import register


@register
class Finish(Tool):
    """Ends a trajectory; the server forgets the state of its tools with it."""

    name: ClassVar[str] = "finish"

    def usage(self) -> str:
        """Nothing that an agent could call."""
        return ""

    def parse(self, action: str) -> str | None:
        """No action is meant for it."""
        return None

    async def call(self, call: ToolCall) -> ToolResult:
        """End it."""
        return ToolResult("", done=True)
