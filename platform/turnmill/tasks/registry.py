"""Task sources by name."""

from collections.abc import Mapping

from turnmill.core.errors import SettingsError
from turnmill.core.lookup import import_class, suggestion
from turnmill.jobs.options import read_options
from turnmill.tasks.base import TaskSource

_MODULES = {
    "arithmetic": "arithmetic:Arithmetic",
    "calculator": "calculator:Calculator",
    "dataset": "dataset:Dataset",
}


def source_names() -> list[str]:
    """Return the names of all built-in task sources, sorted."""
    return sorted(_MODULES)


def find_source(name: str) -> type[TaskSource]:
    """Return the task source class of a name, or of an import path `package.module:Class`.

    Raises SettingsError if there is none, or if what is found is no subclass of TaskSource.
    """
    path = f"turnmill.tasks.{_MODULES[name]}" if name in _MODULES else name
    if ":" not in path:
        raise SettingsError(f"environment.name: there is no task source {name!r}. {suggestion(name, source_names())}")
    return import_class(path, TaskSource, "environment.name", SettingsError)


def create_source(name: str, options: Mapping[str, object] | None = None, *, seed: int = 0) -> TaskSource:
    """Create a task source from the settings of a job's `environment` section.

    Raises SettingsError for an unknown name or option.
    """
    source = find_source(name)
    settings = read_options(source.Settings, options or {}, "environment.options", owner=name, by_name=True)
    return source(settings, seed)
