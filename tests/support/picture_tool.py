"""A tool that answers with a picture or with text."""

import io
from typing import ClassVar

from PIL import Image

from turnmill.tools.base import Tool, ToolCall, ToolResult
from turnmill.tools.media import data_url

COLOURS = ("red", "tan", "blue")


class Pictures(Tool):
    """Returns a picture to most trajectories and text to the others, by their names."""

    name: ClassVar[str] = "support.picture_tool:Pictures"

    def usage(self) -> str:
        """Return the usage in one line."""
        return "anything"

    def parse(self, action: str) -> str | None:
        """Return the whole action."""
        return action

    async def call(self, call: ToolCall) -> ToolResult:
        """Look."""
        number = sum(call.trajectory_id.encode())
        if number % 4 == 0:
            return ToolResult("nothing")
        file = io.BytesIO()
        Image.new("RGB", (64, 64), COLOURS[number % 3]).save(file, format="PNG")
        text = f"<image>{'!' * (number % 5)}"
        return ToolResult({"obs": text, "image": data_url("image/png", file.getvalue())})
