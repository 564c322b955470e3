"""Patches of verl, Ray, vLLM and TransferQueue where they have no plug-in point: one module each.

Every module describes its patch as `PATCH`, is made for one version, and changes nothing when it is imported: it has
`apply`, for the rest of the process, or `applied`, for the duration of a `with` block. `table.ALL` lists them,
docs/development.md shows them, and tests/integration/test_verl_patches.py has a test for each that fails once its
reason is gone. No other module may assign to attributes of other people's modules and classes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

F = TypeVar("F")


@dataclass(frozen=True, slots=True)
class Patch:
    """A change that this project makes to another project's code at run time."""

    target: str
    """Full name of the replaced function or class."""

    change: str
    reason: str
    distribution: str
    version: str
    """Only version of the distribution that the patch is made for."""

    source: str
    """Permanent link to the line that makes the patch necessary."""

    quote: str
    """Text of that line."""

    issue: str | None = None
    """Upstream issue, if there is one."""


def replace_once(owner: object, name: str, make: Callable[[F], F]) -> None:
    """Replace an attribute of a module or class by `make(original)`, at most once in this process."""
    original = getattr(owner, name)
    if not getattr(original, "is_turnmill_patch", False):
        replacement = make(original)
        replacement.is_turnmill_patch = True  # type: ignore[attr-defined]
        setattr(owner, name, replacement)


@contextmanager
def replaced(owner: object, name: str, replacement: object) -> Iterator[None]:
    """Replace an attribute of a module or class while the context lasts."""
    original = getattr(owner, name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, original)
