"""The values of a job file while it may still be wrong somewhere else."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic.fields import FieldInfo

from turnmill.jobs.settings import Settings
from turnmill.jobs.yaml_file import Path


class BrokenValueError(Exception):
    """The value has a problem of its own, so no rule can be judged on it."""


class Values:
    """A job's values by their path in the file, defaults filled in; what is broken raises on being read."""

    def __init__(self, data: Any, model: type[Settings], broken: Iterable[Path] = ()) -> None:
        self._data = data
        self._model = model
        self._broken = frozenset(broken)

    def __getitem__(self, path: str) -> Any:
        """The value at `spec.training.steps`, or None where its section is left out."""
        node: Any = self._data
        model: type[Settings] | None = self._model
        parts = tuple(path.split("."))
        for depth, part in enumerate(parts):
            if parts[: depth + 1] in self._broken:
                raise BrokenValueError(path)
            if node is None:
                return None
            field = fields_by_alias(model)[part] if model else None
            node = _child(node, part, field)
            model = section_of(field) if field else None
        return node

    def within(self, path: str) -> bool:
        """Whether everything at or below the path can be trusted."""
        parts = tuple(path.split("."))
        return not any(broken[: len(parts)] == parts or parts[: len(broken)] == broken for broken in self._broken)


def fields_by_alias(model: type[Settings]) -> dict[str, FieldInfo]:
    """The fields of a section by their names in the file."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def section_of(field: FieldInfo) -> type[Settings] | None:
    """The section that a field holds, or None where it holds a plain value."""
    for candidate in (field.annotation, *getattr(field.annotation, "__args__", ())):
        if isinstance(candidate, type) and issubclass(candidate, Settings):
            return candidate
    return None


def _child(node: Any, part: str, field: FieldInfo | None) -> Any:
    if isinstance(node, Settings):
        names = {inner.alias: name for name, inner in type(node).model_fields.items()}
        return getattr(node, names[part])
    if not isinstance(node, Mapping):
        raise BrokenValueError(part)
    if part in node:
        return node[part]
    if field is None or field.is_required():
        raise BrokenValueError(part)
    return field.get_default(call_default_factory=True)
