"""Values of a job file that may contain errors elsewhere."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

from pydantic.fields import FieldInfo

from turnmill.jobs.settings import PLUGIN, Settings, type_of
from turnmill.jobs.yaml_file import Path


class BrokenValueError(Exception):
    """The value itself is invalid, so that no rule can be checked with it."""


class Values:
    """A job's values by their path in the file, with defaults filled in."""

    def __init__(self, data: object, model: type[Settings], broken: Iterable[Path] = ()) -> None:
        self._data = data
        self._model = model
        self._broken = frozenset(broken)

    def __getitem__(self, path: str) -> Any:
        """Return the value at a path such as `spec.training.steps`, or None if its section is omitted.

        Raises BrokenValueError if the value, or a section above it, has a problem.
        """
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
            model = section_of(field, node) if field else None
        return node

    def within(self, path: str) -> bool:
        """Return True if everything at and below a path is valid."""
        parts = tuple(path.split("."))
        return not any(broken[: len(parts)] == parts or parts[: len(broken)] == broken for broken in self._broken)


def fields_by_alias(model: type[Settings]) -> dict[str, FieldInfo]:
    """Return the fields of a section by their names in the file."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def variants_of(field: FieldInfo) -> tuple[type[Settings], ...]:
    """Return the sections that a field may contain, the default first; none for a field with a plain value."""
    return tuple(sections_in(field.annotation))


def tag_of(variant: type[Settings]) -> str:
    """Return the `type` of one of the sections that a field may contain."""
    field = variant.model_fields["type"]
    return PLUGIN if field.is_required() else str(field.default)


def section_of(field: FieldInfo, value: object = None) -> type[Settings] | None:
    """Return the section of a field, by the `type` of its value if there are several; None for a plain value.

    Raises BrokenValueError if there is no such type.
    """
    variants = variants_of(field)
    if len(variants) < 2:
        return variants[0] if variants else None
    wanted = type_of(value, variants[0])
    for variant in variants:
        if tag_of(variant) == wanted:
            return variant
    raise BrokenValueError("type")


def sections_in(annotation: object) -> Iterator[type[Settings]]:
    """Yield the sections in an annotation, in order."""
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        yield annotation
        return
    for argument in get_args(annotation):
        yield from sections_in(argument)


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
