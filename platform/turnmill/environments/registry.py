"""Environments by name: the modules of this package, entry points and import paths."""

import contextlib
import importlib
import pkgutil
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from turnmill.core.errors import SettingsError
from turnmill.core.lookup import import_object, suggestion
from turnmill.environments.base import Environment

ENTRY_POINT_GROUP = "turnmill.environments"
"""Installed packages offer environments under this group: `name = "package.module:Class"`."""

_NOT_ENVIRONMENTS = frozenset({"base", "extras", "grl", "parsing", "registry", "rendering", "runtime", "tasks"})
"""Modules of this package that hold no environment."""

_registered: dict[str, type[Environment]] = {}

EnvironmentClass = TypeVar("EnvironmentClass", bound=type[Environment])


def register(environment_class: EnvironmentClass) -> EnvironmentClass:
    """Register an environment class by its `name`. Raises ValueError if another class has that name."""
    known = _registered.setdefault(environment_class.name, environment_class)
    if known is not environment_class:
        raise ValueError(
            f"The environment name {environment_class.name!r} belongs to {known.__module__}.{known.__qualname__}: "
            f"give {environment_class.__module__}.{environment_class.__qualname__} another one."
        )
    return environment_class


def names() -> list[str]:
    """Return all known environment names, sorted: turnmill's own, registered ones and entry points."""
    return sorted({*_registered, *_module_names(), *(point.name for point in _entry_points())})


def find(name: str) -> type[Environment]:
    """Return the environment class of a name, or of an import path `package.module:Class`.

    Raises SettingsError if there is none, or if what is found is no subclass of Environment.
    """
    if ":" in name:
        return _from_path(name)
    if name not in _registered and name in _module_names():
        importlib.import_module(f"turnmill.environments.{name}")
    if name not in _registered:
        for point in _entry_points():
            if point.name == name:
                return _checked(_load(point), name)
    if name not in _registered:
        raise SettingsError(f"environment.name: there is no environment {name!r}. {suggestion(name, names())}")
    return _registered[name]


def create(
    name: str, task: str | None = None, max_turns: int = 64, options: Mapping[str, object] | None = None
) -> Environment:
    """Create an environment from the settings of a job's `environment` section.

    `name`, `task` and `options` are `environment.name`, `.task` and `.options`; `max_turns` is the number of turns
    after which an episode is truncated. Raises SettingsError for an unknown name, task or option.
    """
    environment_class = find(name)
    try:
        settings = environment_class.Settings.model_validate(dict(options or {}))
    except ValidationError as error:
        raise SettingsError(_explain(environment_class, error)) from None
    return environment_class(task, max_turns, settings)


def preload(name: str) -> None:
    """Import the module of an environment that comes with turnmill; other names are ignored."""
    module = name.partition(":")[0] if ":" in name else f"turnmill.environments.{name}"
    if name in _module_names() or (":" in name and module.startswith("turnmill.environments.")):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)


def _module_names() -> set[str]:
    found = pkgutil.iter_modules([str(Path(__file__).parent)])
    return {module.name for module in found if not module.name.startswith("_")} - _NOT_ENVIRONMENTS


def _entry_points() -> list[EntryPoint]:
    return list(entry_points(group=ENTRY_POINT_GROUP))


def _load(point: EntryPoint) -> object:
    try:
        loaded: object = point.load()
        return loaded
    except Exception as error:
        raise SettingsError(f"environment.name: {point.name!r} ({point.value}) cannot be loaded: {error}") from error


def _from_path(path: str) -> type[Environment]:
    try:
        found = import_object(path)
    except ImportError as error:
        raise SettingsError(
            f"environment.name: {path!r} names no class: {error}. Write it as package.module:Class, "
            "and install the package or put its folder on PYTHONPATH."
        ) from error
    return _checked(found, path)


def _checked(found: object, name: str) -> type[Environment]:
    if isinstance(found, type) and issubclass(found, Environment):
        return found
    raise SettingsError(f"environment.name: {name!r} is {found!r}; it must be a subclass of Environment.")


def _explain(environment_class: type[Environment], error: ValidationError) -> str:
    fields = environment_class.Settings.model_fields
    known = sorted(field.alias or name for name, field in fields.items())
    lines = []
    for problem in error.errors():
        path = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            way_out = suggestion(path, known) if known else "This environment has no options."
            lines.append(f"environment.options.{path}: {environment_class.name} has no such option. {way_out}")
        else:
            lines.append(f"environment.options.{path} ({problem['input']!r}): {problem['msg']}.")
    return "\n".join(lines)
