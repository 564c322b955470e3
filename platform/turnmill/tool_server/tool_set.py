"""The tools of a server, and which of them an action is for."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from turnmill.tools.base import Tool

log = logging.getLogger(__name__)

FINISH = "finish"
"""Ends a trajectory: no tool, but a request to forget what is kept of it."""

TRIED_LAST = "mcp_interface"
"""Takes whatever looks like a tool call, so others come first wherever it is listed."""

WITHOUT_USAGE = ("base",)


class ToolSet:
    """Tools in the order in which they are asked."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._listed = tuple(tool for tool in tools if tool.name != FINISH)
        self._asked = sorted(self._listed, key=lambda tool: tool.name == TRIED_LAST)

    @property
    def names(self) -> tuple[str, ...]:
        """As they are listed; `finish` is always there and comes last."""
        return (*(tool.name for tool in self._listed), FINISH)

    def finishes(self, extra: Mapping[str, Any]) -> bool:
        """Whether a call ends its trajectory; a server without a tool has no other answer."""
        return bool(extra.get(FINISH)) or not self._listed

    def match(self, action: str) -> tuple[Tool, str] | None:
        """The first tool that takes an action, and what it makes of it."""
        for tool in self._asked:
            try:
                parsed = tool.parse(action)
            except Exception as error:
                log.debug("Tool cannot parse an action", extra={"tool": tool.name, "error": repr(error)})
                continue
            if parsed is not None:
                return tool, parsed
        return None

    def usage(self) -> str:
        """How to call each tool, for an agent whose action none of them takes."""
        lines = [f"• {tool.name}: {tool.usage()}" for tool in self._listed if tool.name not in WITHOUT_USAGE]
        return "\n".join(["Available tools:", *lines]) if lines else "No tools available for usage instructions."
