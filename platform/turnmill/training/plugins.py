"""Classes for the types that a job names: built-in ones by name, others by import path."""

from collections.abc import Mapping
from typing import TypeVar

from turnmill.core.errors import SettingsError
from turnmill.core.lookup import import_class
from turnmill.jobs.settings import PLUGIN, Settings, TypedSection
from turnmill.jobs.values import sections_in, tag_of

Base = TypeVar("Base", bound=type)


class PluginError(SettingsError):
    """A class named in a job cannot be imported, or is of the wrong kind."""


class NoOptions(Settings):
    """Options of a class without options."""


def implementations(sections: object) -> Mapping[str, str]:
    """Return the classes of the built-in types among a union of sections, as `package.module:Class` by type."""
    return {
        tag_of(section): section.implementation
        for section in sections_in(sections)
        if issubclass(section, TypedSection) and tag_of(section) != PLUGIN
    }


def plugin_class(section: str, path: str, base: Base) -> Base:
    """Import the class that `type` of a section of the job names.

    Raises PluginError if it cannot be imported, or is no subclass of `base`.
    """
    return import_class(path, base, f"{section}.type", PluginError)
