"""Tools by name: those of this package, of entry points, of import paths and of a folder."""

import logging
import shutil
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from pathlib import Path

from turnmill.core.errors import ToolUnavailableError
from turnmill.core.lookup import entry_point_class, import_class, suggestion
from turnmill.sandboxes.base import SandboxResult, SandboxTask
from turnmill.tools import settings
from turnmill.tools.base import Tool, ToolContext
from turnmill.tools.registration import folder_tools, registered_tools
from turnmill.tools.registration import register as register
from turnmill.tools.verl_tool_files import NOT_TOOLS, import_file, offer_verl_tool

log = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "turnmill.tools"
"""Installed packages offer tools under this group: `name = "package.module:Class"`."""

BUILT_IN = {
    "audio_crop": "turnmill.tools.audio_crop:AudioCrop",
    "base": "turnmill.tools.turn_counter:TurnCounter",
    "bash_terminal": "turnmill.tools.bash_terminal:BashTerminal",
    "finish": "turnmill.tools.finish:Finish",
    "google_search": "turnmill.tools.google_search:GoogleSearch",
    "ipython_code": "turnmill.tools.ipython_code:IPythonCode",
    "mcp_interface": "turnmill.tools.mcp_interface:McpInterface",
    "piston": "turnmill.tools.piston:Piston",
    "pixel_reasoner": "turnmill.tools.pixel_reasoner:PixelReasoner",
    "python_code": "turnmill.tools.python_code:PythonCode",
    "python_oj": "turnmill.tools.python_oj:PythonOJ",
    "sandbox_fusion": "turnmill.tools.sandbox_fusion:SandboxFusion",
    "search_retrieval": "turnmill.tools.search_retrieval:SearchRetrieval",
    "sql": "turnmill.tools.sql:Sql",
    "text_browser": "turnmill.tools.text_browser:TextBrowser",
    "verl": "turnmill.tools.verl_tools:VerlTools",
}
"""Tools of this package; each is imported when it is first used."""

TOOLS_FOLDER = "TOOLS_FOLDER"
"""Setting with a folder in which `NAME.py` registers the tool NAME."""

VERL_TOOL_IMPORTS = "VERL_TOOL_IMPORTS"
"""Setting that lets files of the folder import `verl_tool.servers.tools`: `on` or `off`."""


def names(folder: Path | None = None) -> list[str]:
    """Return all names that `find` knows, sorted."""
    points = (point.name for point in _entry_points())
    files = (file.stem for file in folder.glob("[!_]*.py") if file.name not in NOT_TOOLS) if folder else ()
    return sorted({*registered_tools, *BUILT_IN, *points, *files})


def find(name: str, folder: Path | None = None) -> type[Tool]:
    """Return the tool class of a name, or of an import path `package.module:Class`; the folder has precedence.

    Raises ToolUnavailableError if there is none, or if it cannot be loaded.
    """
    file = None if folder is None else folder / f"{name}.py"
    if file is not None and file.name not in NOT_TOOLS and file.is_file():
        return _from_file(file)
    if folder is not None and name in folder_tools:
        return folder_tools[name]
    if name in registered_tools:
        return registered_tools[name]
    if name in BUILT_IN or ":" in name:
        return import_class(BUILT_IN.get(name, name), Tool, "tool", ToolUnavailableError)
    for point in _entry_points():
        if point.name == name:
            return entry_point_class(point, Tool, "tool", ToolUnavailableError)
    raise ToolUnavailableError(f"There is no tool {name!r}. {suggestion(name, names(folder))}")


def create(name: str, context: ToolContext) -> Tool:
    """Create a tool; raises ToolUnavailableError if there is none or a requirement is not installed."""
    return _complete_class(name, context.settings)(context)


def check(name: str, values: Mapping[str, str]) -> type[Tool]:
    """Return the class of a tool, or raise the error with which `create` would fail.

    A tool from outside this package is not created to find the error.
    """
    tool_class = _complete_class(name, values)
    if tool_class.__module__.startswith("turnmill.tools."):
        tool_class(ToolContext(_NoSandbox(), values))
    return tool_class


class _NoSandbox:
    async def run(self, task: SandboxTask) -> SandboxResult:
        raise AssertionError("a tool that is only checked runs nothing")

    async def close(self) -> None:
        pass


def _complete_class(name: str, values: Mapping[str, str]) -> type[Tool]:
    """Return the class of a tool, if everything that it requires is installed."""
    folder = values.get(TOOLS_FOLDER)
    if settings.switch(values, VERL_TOOL_IMPORTS, False):
        offer_verl_tool()
    tool_class = find(name, Path(folder) if folder else None)
    lacking = missing(tool_class.requires)
    if lacking:
        raise ToolUnavailableError(
            f"The tool {tool_class.name!r} needs {' and '.join(lacking)}, which is not installed here: "
            f"install it, or leave {tool_class.name!r} out."
        )
    return tool_class


def missing(requires: Iterable[str]) -> list[str]:
    """Return the packages and programs that are not installed."""
    return [name for name in requires if shutil.which(name) is None and not _is_distribution(name)]


def _is_distribution(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _entry_points() -> list[EntryPoint]:
    return list(entry_points(group=ENTRY_POINT_GROUP))


def _from_file(file: Path) -> type[Tool]:
    if import_file(file) and file.stem in {*BUILT_IN, *registered_tools}:
        log.warning("A file replaces a tool of the same name", extra={"tool": file.stem, "file": str(file)})
    if file.stem not in folder_tools:
        raise ToolUnavailableError(
            f"{file} registers no tool {file.stem!r}: give a class of it @register and `name = {file.stem!r}`."
        )
    return folder_tools[file.stem]
