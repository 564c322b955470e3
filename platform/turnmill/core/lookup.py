"""Objects by import path, and suggestions for misspelt names."""

import difflib
import importlib
from collections.abc import Sequence
from typing import Any


def import_object(path: str) -> Any:
    """Import the object that `package.module:name` names. Raises ImportError, with the reason, if there is none."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (AttributeError, ValueError) as error:
        raise ImportError(str(error)) from error


def suggestion(word: str, known: Sequence[str]) -> str:
    """Return a sentence with the closest known words, and with all of them, or the first 20."""
    by_lower: dict[str, str] = {}
    for candidate in known:
        by_lower.setdefault(candidate.lower(), candidate)
    close = [by_lower[match] for match in difflib.get_close_matches(word.lower(), by_lower, n=3)]
    sentence = f"Did you mean {' or '.join(map(repr, close))}? " if close else ""
    shown = known if len(known) <= 20 else [*known[:20], f"and {len(known) - 20} more"]
    return f"{sentence}Known: {', '.join(shown)}."
