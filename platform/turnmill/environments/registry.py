"""Environments by name: the modules of this package, entry points and import paths."""

import contextlib
import importlib
import pkgutil
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TypeVar

from turnmill.core.errors import SettingsError
from turnmill.core.lookup import entry_point_class, import_class, suggestion
from turnmill.environments.base import Environment
from turnmill.jobs.options import read_options

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
        return import_class(name, Environment, "environment.name", SettingsError)
    if name not in _registered and name in _module_names():
        importlib.import_module(f"turnmill.environments.{name}")
    if name not in _registered:
        for point in _entry_points():
            if point.name == name:
                return entry_point_class(point, Environment, "environment.name", SettingsError)
    if name not in _registered:
        raise SettingsError(f"environment.name: there is no environment {name!r}. {suggestion(name, names())}")
    return _registered[name]


def allowed_actions(name: str) -> tuple[str, ...]:
    """Return the actions of an environment. Raises SettingsError if they are free text, or differ between tasks."""
    actions: tuple[str, ...] = getattr(find(name), "actions", ())
    if not actions:
        raise SettingsError(f"agent.prompt: cot_actions, but {name} has no fixed list of actions. Choose cot.")
    return actions


def create(
    name: str, task: str | None = None, max_turns: int = 64, options: Mapping[str, object] | None = None
) -> Environment:
    """Create an environment from the settings of a job's `environment` section.

    `name`, `task` and `options` are `environment.name`, `.task` and `.options`; `max_turns` is the number of turns
    after which an episode is truncated. Raises SettingsError for an unknown name, task or option.
    """
    environment_class = find(name)
    settings = read_options(
        environment_class.Settings, options or {}, "environment.options", owner=environment_class.name, by_name=True
    )
    if environment_class.tasks is not None and task is not None and task not in environment_class.tasks:
        way_out = suggestion(task, environment_class.tasks) if environment_class.tasks else "It has none: leave it out."
        raise SettingsError(f"environment.task: {name} has no task {task!r}. {way_out}")
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
