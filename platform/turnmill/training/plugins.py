"""The classes that the types of a job stand for: built-in ones, and those from outside with their options."""

from collections.abc import Mapping
from typing import TypeVar

from pydantic import ValidationError

from turnmill.core.errors import SettingsError
from turnmill.core.lookup import import_object
from turnmill.jobs.settings import PLUGIN, Settings, TypedSection
from turnmill.jobs.values import sections_in, tag_of

Base = TypeVar("Base")


class PluginError(SettingsError):
    """A class that a job names and that cannot be used."""


class NoOptions(Settings):
    """The options of a class that has none."""


def implementations(sections: object) -> Mapping[str, str]:
    """Return the classes of the built-in types among a union of sections, as `package.module:Class` by type."""
    return {
        tag_of(section): section.implementation
        for section in sections_in(sections)
        if issubclass(section, TypedSection) and tag_of(section) != PLUGIN
    }


def plugin_class(section: str, path: str, base: type[Base]) -> type[Base]:
    """Import the class that `type` of a section of the job names.

    Raises PluginError where it cannot be imported, or does not descend from `base`.
    """
    try:
        found = import_object(path)
    except Exception as error:
        # Whatever a module raises on import: it is the user's own.
        raise PluginError(
            f"{section}.type: {path!r} cannot be imported ({type(error).__name__}: {error}). "
            "Install its package where the job runs, or put its folder on PYTHONPATH."
        ) from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise PluginError(f"{section}.type: {path!r} is no subclass of {base.__module__}:{base.__name__}. Make it one.")
    return found


def read_options(section: str, model: type[Settings], options: Mapping[str, object]) -> Settings:
    """Return the options of a section as the class's own model; raises SettingsError with all that is wrong."""
    try:
        return model.model_validate(options, by_alias=True, by_name=False)
    except ValidationError as error:
        known = ", ".join(field.alias or name for name, field in model.model_fields.items()) or "none"
        raise SettingsError(
            "\n".join(
                f"{section}.options.{'.'.join(map(str, details['loc']))}: {details['msg']}. Known options: {known}."
                for details in error.errors()
            )
        ) from error
