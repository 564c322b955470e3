"""Base class of all sections of a job file, and common types of fields."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field
from pydantic.alias_generators import to_camel


class Settings(BaseModel):
    """A section: frozen, without unknown fields, camelCase in the file; documented by its fields' docstrings."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
        validate_default=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )


class TypedSection(Settings):
    """A section with several types: an agent loop or an algorithm."""

    implementation: ClassVar[str]
    """Class in `turnmill.training` that implements the section, as `package.module:Class`.

    It is a name, so that a job is parsed without torch. Sections of type PLUGIN have none: their `type` is the class.
    """

    type: str
    """Name of the type, or `package.module:Class` for a class from outside this package."""


# The API server estimates the cost of every rule from the maximum sizes of the values that it reads.
Word = Annotated[str, Field(min_length=1, max_length=253)]
FilePath = Annotated[str, Field(min_length=1, max_length=1024)]
Seed = Annotated[int, Field(ge=0, le=2**31 - 1)]


PLUGIN = "package.module:Class"
"""Represents all types that are classes from outside this package."""

PluginPath = Annotated[
    str, Field(min_length=3, max_length=253, pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$")
]


def by_type(default: type[Settings]) -> Discriminator:
    """Discriminate the sections of a union by their field `type`; a section without it is the default."""
    return Discriminator(lambda value: type_of(value, default))


def type_of(section: object, default: type[Settings]) -> str:
    """Return the `type` of a section, parsed or not."""
    named = section.get("type") if isinstance(section, Mapping) else getattr(section, "type", None)
    return kind_of(str(default.model_fields["type"].default if named is None else named))


def kind_of(named: str) -> str:
    """Return the tag that selects a section of a union: the type's name, or PLUGIN for a class from outside."""
    return PLUGIN if ":" in named else named
