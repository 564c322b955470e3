"""The tool that ends a trajectory; it is selected by the flag `finish`, never by an action."""

from typing import ClassVar

from turnmill.tools.base import Tool, ToolCall, ToolResult
from turnmill.tools.registry import register


@register
class Finish(Tool):
    """Ends a trajectory; the server then deletes the state of its tools."""

    name: ClassVar[str] = "finish"

    def usage(self) -> str:
        """Return an empty text, as agents cannot call it."""
        return ""

    def parse(self, action: str) -> str | None:
        """Return None, as no action is for it."""
        return None

    async def call(self, call: ToolCall) -> ToolResult:
        """End the trajectory."""
        return ToolResult("", done=True)
