"""What became of an unedited file."""

from collections.abc import Sequence
from dataclasses import dataclass

CHECKED = "converted and checked"


@dataclass(frozen=True, slots=True)
class Outcome:
    """A file of another system, what was done with it, and with what result."""

    system: str
    file: str
    done: str
    outcome: str
    sentences: Sequence[str] = ()


def chosen(file: str, names: Sequence[str]) -> bool:
    """Return whether a file has one of these parts in its name."""
    return any(name in file for name in names)
