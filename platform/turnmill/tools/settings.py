"""Typed access to the settings of tools; each function raises SettingsError for an invalid value."""

import os
from collections import ChainMap
from collections.abc import Mapping

from turnmill.core.errors import SettingsError
from turnmill.trajectories.settings import MIB, StoreSettings

Values = Mapping[str, str]
_ANSWERS_BYTES = 4 * MIB
"""Space for recorded results of a trajectory in the store, besides the state of a tool."""


def with_environment(given: Values) -> Values:
    """Return the settings of tools that are given, and those in the environment."""
    return ChainMap(dict(given), dict(os.environ))


def text(values: Values, name: str, default: str) -> str:
    """Return the value, or the default if it is missing or empty."""
    return values.get(name) or default


def number(values: Values, name: str, default: float, *, least: float = 0) -> float:
    """Return a number of at least `least`."""
    given = values.get(name)
    if not given:
        return default
    try:
        value = float(given)
    except ValueError:
        value = float("nan")
    if not value >= least or value == float("inf"):
        raise SettingsError(f"{name} ({given!r}) must be a number of at least {least:g}.")
    return value


def count(values: Values, name: str, default: int, *, least: int = 0) -> int:
    """Return a whole number of at least `least`."""
    value = number(values, name, default, least=least)
    if value != int(value):
        raise SettingsError(f"{name} ({values[name]!r}) must be a whole number.")
    return int(value)


def state_bytes(values: Values, name: str, default: int, *, least: int = 0, share: float = 1) -> int:
    """Return the maximum size of a tool's state per trajectory; `share` is its share of everything stored."""
    value = count(values, name, default, least=least)
    most = int((StoreSettings().max_trajectory_bytes - _ANSWERS_BYTES) * share)
    if value > most:
        raise SettingsError(f"{name} ({values[name]!r}) must be at most {most}: the trajectory store takes no more.")
    return value


def choice(values: Values, name: str, default: str, known: tuple[str, ...]) -> str:
    """Return one of the allowed words."""
    value = text(values, name, default)
    if value not in known:
        raise SettingsError(f"{name} ({value!r}) must be one of {', '.join(known)}.")
    return value


def switch(values: Values, name: str, default: bool) -> bool:
    """Return True for `on` and False for `off`."""
    return choice(values, name, "on" if default else "off", ("on", "off")) == "on"
