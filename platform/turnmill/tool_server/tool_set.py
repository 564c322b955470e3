"""The tools of a server, and the matching of actions to them."""

import logging
from collections.abc import Mapping, Sequence

from turnmill.tools.base import Tool

log = logging.getLogger(__name__)

FINISH = "finish"
"""Flag of a call that ends its trajectory: no tool is called, and the state of all tools is deleted."""

MATCHED_LAST = "mcp_interface"
"""Tool that accepts anything that looks like a tool call, so all others are tried first."""

WITHOUT_USAGE = ("base",)


class ToolSet:
    """Tools in the order in which actions are matched."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._listed = tuple(tool for tool in tools if tool.name != FINISH)
        self._match_order = sorted(self._listed, key=lambda tool: tool.name == MATCHED_LAST)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tools in the order of the settings, and `finish`."""
        return (*(tool.name for tool in self._listed), FINISH)

    def finishes(self, extra: Mapping[str, object]) -> bool:
        """Return True if a call ends its trajectory; without tools, every call does."""
        return bool(extra.get(FINISH)) or not self._listed

    def match(self, action: str) -> tuple[Tool, str] | None:
        """Return the first tool that accepts an action, and the part it parsed; None if no tool accepts it."""
        for tool in self._match_order:
            try:
                parsed = tool.parse(action)
            except Exception as error:
                log.debug("Tool cannot parse an action", extra={"tool": tool.name, "error": repr(error)})
                continue
            if parsed is not None:
                return tool, parsed
        return None

    async def forget(self, trajectory_id: str) -> None:
        """Let every tool delete what it keeps of a trajectory; one that fails does not stop the others."""
        for tool in self._listed:
            try:
                await tool.forget(trajectory_id)
            except Exception:
                log.exception("Tool cannot forget a trajectory", extra={"tool": tool.name})

    def usage(self) -> str:
        """Return a description of each tool, for an agent whose action no tool accepts."""
        lines = [f"• {tool.name}: {tool.usage()}" for tool in self._listed if tool.name not in WITHOUT_USAGE]
        return "\n".join(["Available tools:", *lines]) if lines else "No tools available for usage instructions."
