"""The tables of registered tools."""

from typing import TypeVar

from turnmill.tools.base import Tool

registered_tools: dict[str, type[Tool]] = {}

FOLDER_PACKAGE = "turnmill_tools_folder"
"""Package as which the user's folder of tools is imported."""

folder_tools: dict[str, type[Tool]] = {}
"""Tools of the user's folder, which may have the names of other tools."""

ToolClass = TypeVar("ToolClass", bound=type[Tool])


def register(tool_class: ToolClass) -> ToolClass:
    """Class decorator that registers a tool under its `name`. Raises ValueError if another class has that name."""
    in_folder = tool_class.__module__.split(".")[0] == FOLDER_PACKAGE
    known = (folder_tools if in_folder else registered_tools).setdefault(tool_class.name, tool_class)
    if known is not tool_class:
        raise ValueError(
            f"The tool name {tool_class.name!r} belongs to {known.__module__}.{known.__qualname__}: "
            f"give {tool_class.__module__}.{tool_class.__qualname__} another one."
        )
    return tool_class
