"""verl's example tools that verl itself no longer has: files of tools that name them still work."""

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import yaml

EXAMPLES = "turnmill.rollout.multi_turn.example_tools"
HERE: Mapping[str, str] = {
    "verl.tools.gsm8k_tool": f"{EXAMPLES}.gsm8k",
    "verl.tools.search_tool": f"{EXAMPLES}.search",
}
"""Modules of verl's former tools, and those with classes of the same names and settings."""


def offer_removed_tools() -> None:
    """Make verl's former modules of tools importable, unless the installed verl has them."""
    for name, module in HERE.items():
        if name not in sys.modules and find_spec(name) is None:
            sys.modules[name] = import_module(module)


def missing_classes(file: Path) -> Iterator[tuple[str, str]]:
    """Yield the classes of a file of tools that cannot be loaded here, with what to do about each."""
    try:
        tools = (yaml.safe_load(file.read_text(encoding="utf-8")) or {}).get("tools") or ()
    except (yaml.YAMLError, UnicodeDecodeError, AttributeError):
        # Loading the file reports it.
        return
    for tool in tools:
        name, kind = str(tool.get("class_name")), (tool.get("config") or {}).get("type", "native")
        if kind != "native":
            yield name, f"Use the agent type tool with mcp_interface: verl has removed tools of type {kind}."
        elif name.rpartition(".")[0] not in HERE and not _is_importable(name.rpartition(".")[0]):
            own = "Copy its file, which verl no longer has," if name.startswith("verl.tools.") else "Put its module"
            yield name, f"{own} into a folder on the Python path, and give its name there."


def _is_importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False
