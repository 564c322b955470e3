"""The code that decides what an example learns: what every run uses, and the rooms of its agent kind and environment.

A room is what only some jobs use: the code of an agent kind, of an environment or of a tool. Another room counts as far
as the code of the example imports it, and so do the files of `jobs`, of which some are the operator's.
"""

from functools import cache
from pathlib import Path

import yaml
from import_closure import ROOT, closure, imported

PLATFORM = ROOT / "platform" / "turnmill"
FOLDERS = ("training", "rollout", "environments", "tasks", "tools", "jobs")
AGENT_KINDS = ("grl", "harness", "multi_turn", "tool", "verlog")
# What environments have in common.
_ALL_ENVIRONMENTS = frozenset({"__init__", "base", "extras", "parsing", "registry", "rendering", "runtime", "tasks"})


def files_of(job: Path) -> list[Path]:
    """Return the Python files that decide what a job learns, sorted."""
    spec = yaml.safe_load(job.read_text())["spec"]
    agent, environment = spec["agent"], spec.get("environment", {}).get("name")
    own = {f"agent kind {agent['type']}", f"environment {environment}"}
    own |= {f"tool {name.strip()}" for name in agent.get("toolType", "").split(",")}
    if agent["type"] == "grl":
        # Its environments are named within other sections: all of them count.
        own |= {room for room in map(_room, _files()) if room is not None and room.startswith("environment ")}

    def uses(file: Path) -> set[Path]:
        found = _files().intersection(imported(file, with_names=False))
        if _room(file) != "jobs":
            return found
        # Settings of all agent kinds are one type: that does not make each depend on all.
        return {each for each in found if _room(each) in (None, "jobs", *own)}

    return closure((file for file in _files() if _room(file) in (None, *own)), uses)


def is_used_by_all(file: Path) -> bool:
    """Return whether every job uses a file for its place; it need not exist any more."""
    return _room(file) is None


def _room(file: Path) -> str | None:
    """Return the room of a file, or None for what every job uses."""
    folder, *rest = file.relative_to(PLATFORM).with_suffix("").parts
    match folder, *rest:
        case "rollout", kind, _ if kind.removesuffix("_agent") in AGENT_KINDS:
            return f"agent kind {kind.removesuffix('_agent')}"
        case "training", "agent_kinds", kind if kind in AGENT_KINDS:
            return f"agent kind {kind}"
        case "training", "grl", _:
            return "agent kind grl"
        case "jobs", module if module.removesuffix("_agent") in AGENT_KINDS:
            return f"agent kind {module.removesuffix('_agent')}"
        case "jobs", _:
            return "jobs"
        case "environments", name, *_ if name not in _ALL_ENVIRONMENTS:
            return f"environment {name}"
        case "tools", name, *_:
            return f"tool {name}"
    return None


@cache
def _files() -> frozenset[Path]:
    return frozenset(file for folder in FOLDERS for file in (PLATFORM / folder).rglob("*.py"))
