"""Task sources by name."""

from collections.abc import Mapping

from pydantic import ValidationError

from turnmill.core.errors import SettingsError
from turnmill.core.lookup import import_object, suggestion
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
    try:
        found = import_object(path)
    except ImportError as error:
        raise SettingsError(
            f"environment.name: {name!r} names no class: {error}. Write it as package.module:Class, "
            "and install the package or put its folder on PYTHONPATH."
        ) from error
    if not (isinstance(found, type) and issubclass(found, TaskSource)):
        raise SettingsError(f"environment.name: {name!r} is {found!r}; it must be a subclass of TaskSource.")
    return found


def create_source(name: str, options: Mapping[str, object] | None = None, *, seed: int = 0) -> TaskSource:
    """Create a task source from the settings of a job's `environment` section.

    Raises SettingsError for an unknown name or option.
    """
    source = find_source(name)
    try:
        settings = source.Settings.model_validate(dict(options or {}))
    except ValidationError as error:
        known = sorted(field.alias or key for key, field in source.Settings.model_fields.items())
        lines = []
        for problem in error.errors():
            path = ".".join(str(part) for part in problem["loc"])
            if problem["type"] == "extra_forbidden":
                way_out = suggestion(path, known) if known else "This task source has no options."
                lines.append(f"environment.options.{path}: {name} has no such option. {way_out}")
            else:
                lines.append(f"environment.options.{path}: {problem['msg']}. Correct it.")
        raise SettingsError("\n".join(lines)) from None
    return source(settings, seed)
