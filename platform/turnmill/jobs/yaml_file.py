"""Parser of YAML as Kubernetes reads it, with the line of every value; what could not be meant is a problem."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from turnmill.jobs.problems import MISSING, JobError, Problem

Path = tuple[str | int, ...]


class _Loader(yaml.SafeLoader):
    """YAML loader that reads `1e-6` as a number, as the API server does, and dates as text."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":timestamp", ":float", ":int"))]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(0|[1-9][0-9]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^([-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.inf|\.nan)$"),
    list("-+.0123456789"),
)


_UNPRINTABLE = re.compile(yaml.reader.Reader.NON_PRINTABLE.pattern)
"""Characters that no YAML file may contain, such as NUL."""


_NOT_TEXT = re.compile("[\0\ud800-\udfff]")
"""Characters that a YAML escape can write, but no path and no UTF-8 can hold: NUL and halves of surrogate pairs."""


@dataclass(frozen=True, slots=True)
class Document:
    """Value of a YAML text, with the line of each of its parts, and its problems."""

    value: Any
    lines: dict[Path, int] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


def parse_yaml(text: str) -> Document:
    """Parse a text. Raises JobError if it is not a single YAML document."""
    if (found := _UNPRINTABLE.search(text)) is not None:
        raise JobError([_unprintable_problem(text, found.start())])
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return Document(None)
        value = loader.construct_document(node)
        return Document(value, dict(_lines(node, (), set())), tuple(_problems(node, (), set(), frozenset())))
    except yaml.MarkedYAMLError as error:
        raise JobError([_syntax_problem(error)]) from error
    except (ValueError, AttributeError, RecursionError) as error:
        # Of tags such as `!!int x`, of numbers with thousands of digits, and of thousands of levels.
        rule = f"the file has a value that cannot be read: {str(error).splitlines()[0]}"
        raise JobError([Problem("", MISSING, rule, "Write it as plain YAML, without tags.")]) from error
    finally:
        loader.dispose()


def _unprintable_problem(text: str, position: int) -> Problem:
    line = text.count("\n", 0, position) + 1
    rule = f"line {line}: a character that YAML does not allow, U+{ord(text[position]):04X}"
    return Problem("", MISSING, rule, "Remove it.")


def _syntax_problem(error: yaml.MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    rule = f"{place}{error.problem or error.context}".rstrip(".")
    return Problem("", MISSING, rule, "Correct the YAML there; indentation is two spaces, never tabs.")


def _children(node: yaml.Node, path: Path) -> Iterator[tuple[Path, yaml.Node, yaml.Node]]:
    """Yield path, key node and value node of each part."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield (*path, str(key.value)), key, value
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*path, index), value, value


def _lines(node: yaml.Node, path: Path, seen: set[int]) -> Iterator[tuple[Path, int]]:
    # An alias leads back to a node that has its lines already; following it may never end.
    if id(node) in seen:
        return
    seen.add(id(node))
    for child_path, place, child in _children(node, path):
        yield child_path, place.start_mark.line + 1
        yield from _lines(child, child_path, seen)


def _problems(node: yaml.Node, path: Path, seen: set[int], above: frozenset[int]) -> Iterator[Problem]:
    """Yield a problem for every duplicate key, every alias of a node that contains it, and every text with NUL."""
    if id(node) in above:
        yield Problem(dotted(path), MISSING, "contains itself by an alias", "Write out what it means.")
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.ScalarNode) and (found := _NOT_TEXT.search(node.value)):
        rule = f"has a character that no text of a job may have, U+{ord(found[0]):04X}"
        yield Problem(dotted(path), MISSING, rule, "Remove it.", f"line {node.start_mark.line + 1}")
    first_lines: dict[Path, int] = {}
    for child_path, place, child in _children(node, path):
        line = place.start_mark.line + 1
        if child_path in first_lines:
            rule = f"is there twice, first on line {first_lines[child_path]}"
            yield Problem(dotted(child_path), MISSING, rule, "Keep one of them.", f"line {line}")
        first_lines.setdefault(child_path, line)
        yield from _problems(child, child_path, seen, above | {id(node)})


def dotted(path: Path) -> str:
    """Format a path as in messages: `spec.tracking.loggers[0]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text
