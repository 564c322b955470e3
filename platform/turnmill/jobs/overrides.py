"""Settings on the command line, such as `training.steps=3`, that override those of the file."""

import copy
from collections.abc import Sequence
from typing import Any

from turnmill.jobs.problems import MISSING, JobError, Problem
from turnmill.jobs.yaml_file import Path, dotted, parse_yaml

TOP = ("apiVersion", "kind", "metadata", "spec")

# Their keys are names with dots of their own, so nothing after them is split.
FREE_MAPS = (("spec", "verl"), ("metadata", "labels"), ("metadata", "annotations"))


def apply_overrides(data: dict[str, Any], overrides: Sequence[str]) -> tuple[dict[str, Any], list[Path], list[Problem]]:
    """Return the data with every `path=value` set, the paths that were set, and problems of overrides."""
    data = copy.deepcopy(data)
    places: list[Path] = []
    problems: list[Problem] = []
    for override in overrides:
        try:
            path, value = split_override(override)
            _put(data, path, value)
            places.append(path)
        except JobError as error:
            problems.extend(error.problems)
    return data, places, problems


def split_override(override: str) -> tuple[Path, object]:
    """Split `path=value`; a path that does not start with a top-level field starts at `spec`. Raises JobError."""
    name, equals, text = override.partition("=")
    parts = tuple(name.strip().split("."))
    if not equals or not all(parts):
        way_out = "Write it as path=value, for example training.steps=3."
        raise JobError([Problem("--set", override, "has no path and value", way_out)])
    path = parts if parts[0] in TOP else ("spec", *parts)
    for free in FREE_MAPS:
        if path[:2] == free and len(path) > 2:
            path = (*free, ".".join(path[2:]))
    try:
        document = parse_yaml(text)
        if document.problems:
            raise JobError(document.problems)
        return path, document.value
    except JobError as error:
        way_out = "Quote the value as YAML wants it."
        raise JobError([Problem(f"--set {name}", text, error.problems[0].rule, way_out)]) from error


def _put(data: dict[str, Any], path: Path, value: object) -> None:
    node: Any = data
    for depth, name in enumerate(path[:-1]):
        below = node.get(name)
        if below is None:
            below = node[name] = {}
        if isinstance(below, dict):
            # A section of its own: with an anchor, the file has it in several places.
            below = node[name] = dict(below)
        else:
            place = dotted(path[: depth + 1])
            rule = f"leads into {place}, which is no section"
            raise JobError([Problem(f"--set {dotted(path)}", MISSING, rule, f"Set {place} itself.")])
        node = below
    node[path[-1]] = value
