"""Agents by name: built-in ones, those of installed packages, and import paths."""

import importlib
import logging
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TypeVar

from turnmill.core.errors import SettingsError
from turnmill.core.lookup import entry_point_class, import_class, suggestion
from turnmill.environments.grl.base_agent import BaseAgent
from turnmill.environments.grl.plain_agent import METHODS, is_plain_agent, plain_agent

ENTRY_POINT_GROUP = "turnmill.agents"
"""Installed packages offer agents under this group: `name = "package.module:Class"`."""

_MODULES = ("environment_agent", "grid_agents", "text_agents")
"""Modules of this package whose import registers agents."""

log = logging.getLogger(__name__)

_registered: dict[str, type[BaseAgent]] = {}
_broken: dict[str, Exception] = {}
_loaded: set[str] = set()

AgentClass = TypeVar("AgentClass", bound=type)
Loaded = TypeVar("Loaded")


def register_agent(name: str) -> Callable[[AgentClass], AgentClass]:
    """Class decorator that registers an agent by a name: a BaseAgent, or a plain class with the methods of GRL's.

    Raises ValueError if another class has that name, TypeError for other classes.
    """

    def register(agent_class: AgentClass) -> AgentClass:
        _registered_class(name, _as_agent(agent_class))
        return agent_class

    return register


def _as_agent(found: type) -> type[BaseAgent]:
    if issubclass(found, BaseAgent):
        return found
    if is_plain_agent(found):
        return plain_agent(found)
    raise TypeError(f"{found!r} is no agent: derive it from BaseAgent, or give it {', '.join(METHODS)}.")


def _registered_class(name: str, agent_class: type[BaseAgent]) -> None:
    known = _registered.get(name, agent_class)
    # A module that runs as a script is imported a second time under its own name.
    if known is not agent_class and _path(known) != _path(agent_class):
        raise ValueError(
            f"The agent name {name!r} belongs to {known.__module__}.{known.__qualname__}: "
            f"give {agent_class.__module__}.{agent_class.__qualname__} another one."
        )
    _registered[name] = agent_class


def get_agent_cls(name: str) -> type[BaseAgent]:
    """Return the agent class of a name, or of an import path `package.module:Class`.

    Raises KeyError if there is none, with the known names, or if its import failed.
    """
    if ":" in name:
        found = import_class(name, object, "", KeyError)
        is_plain = is_plain_agent(found) and not issubclass(found, BaseAgent)
        return plain_agent(found) if is_plain else import_class(name, BaseAgent, "", KeyError)
    _load_all()
    if name in _registered:
        return _registered[name]
    if name in _broken:
        raise KeyError(f"The agent {name!r} could not be imported: {_broken[name]!r}.")
    raise KeyError(f"There is no agent {name!r}. {suggestion(name, list_agents())}")


def path_of(name: str) -> str:
    """Return a name by which other processes find an agent: that of a built-in or installed one, else its import path.

    Raises SettingsError if other processes cannot import the class.
    """
    if ":" in name or name in _installed():
        return name
    module, qualified = _path(get_agent_cls(name))
    if module == "__main__":
        raise SettingsError(
            f"agentType: {name!r} is defined in an interactive session, and agents run in other processes, which "
            "cannot import it. Define it in a file and import it from there."
        )
    return f"{module}:{qualified}"


def _installed() -> set[str]:
    """Return the names that every process knows."""
    _load_all()
    own = {name for name, found in _registered.items() if found.__module__.startswith("turnmill.environments.")}
    return own | {point.name for point in entry_points(group=ENTRY_POINT_GROUP)}


def list_agents() -> list[str]:
    """Return the names of all agents, sorted."""
    _load_all()
    return sorted(_registered)


def _load_all() -> None:
    """Import all modules that register agents; a module whose import fails is skipped with a warning."""
    for module in _MODULES:
        _load(module, partial(importlib.import_module, f"turnmill.environments.grl.{module}"))
    for point in entry_points(group=ENTRY_POINT_GROUP):
        load = partial(entry_point_class, point, BaseAgent, "", ImportError)
        if (found := _load(point.name, load)) is not None:
            register_agent(point.name)(found)


def _load(name: str, load: Callable[[], Loaded]) -> Loaded | None:
    if name in _loaded:
        return None
    _loaded.add(name)
    try:
        return load()
    except Exception as error:
        log.warning("Agent left out", extra={"agent": name, "what": repr(error)})
        _broken[name] = error
        return None


def _path(agent_class: type[BaseAgent]) -> tuple[str, str]:
    """Return the module and the name of a class; a script's module is the name under which others import it."""
    module = agent_class.__module__
    file = getattr(sys.modules.get("__main__"), "__file__", None) if module == "__main__" else None
    return Path(file).stem if file else module, agent_class.__qualname__
