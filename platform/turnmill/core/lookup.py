"""Objects and classes by import path or entry point, and suggestions for misspelt names."""

import difflib
import importlib
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from typing import Any, TypeVar, cast

Base = TypeVar("Base", bound=type)


def import_object(path: str) -> Any:
    """Import the object that `package.module:name` names. Raises ImportError, with the reason, if there is none."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (AttributeError, ValueError) as error:
        raise ImportError(str(error)) from error


def import_class(path: str, base: Base, context: str, error_class: type[Exception]) -> Base:
    """Import the subclass of `base` that `package.module:Class` names.

    Raises `error_class` if it cannot be imported or is no subclass; the message begins with `context`, such as the
    setting that names the class, unless that is empty.
    """
    return _load_class(lambda: import_object(path), repr(path), base, context, error_class)


def entry_point_class(point: EntryPoint, base: Base, context: str, error_class: type[Exception]) -> Base:
    """Load the subclass of `base` that an installed package offers as an entry point; raises as `import_class` does."""
    return _load_class(point.load, f"{point.name!r} ({point.value})", base, context, error_class)


def _load_class(load: Callable[[], object], shown: str, base: Base, context: str, error_class: type[Exception]) -> Base:
    place = f"{context}: " if context else ""
    try:
        found = load()
    except Exception as error:
        # A module of the user's own may raise anything on import.
        raise error_class(
            f"{place}{shown} cannot be imported ({type(error).__name__}: {error}). Write it as package.module:Class, "
            "and install its package where it is used, or put its folder on PYTHONPATH."
        ) from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise error_class(
            f"{place}{shown} is no subclass of {base.__module__}:{base.__name__}, but {found!r}. "
            "Derive the class from it, or name another one."
        )
    return cast("Base", found)


def suggestion(word: str, known: Sequence[str]) -> str:
    """Return a sentence with the closest known words, and with all of them, or the first 20."""
    by_lower: dict[str, str] = {}
    for candidate in known:
        by_lower.setdefault(candidate.lower(), candidate)
    close = [by_lower[match] for match in difflib.get_close_matches(word.lower(), by_lower, n=3)]
    sentence = f"Did you mean {' or '.join(map(repr, close))}? " if close else ""
    shown = known if len(known) <= 20 else [*known[:20], f"and {len(known) - 20} more"]
    return f"{sentence}Known: {', '.join(shown)}."
