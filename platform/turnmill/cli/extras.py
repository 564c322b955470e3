"""Packages that only some commands need."""

from collections.abc import Iterator
from contextlib import contextmanager

from turnmill.core.errors import SettingsError


@contextmanager
def needs_extra(extra: str, what: str) -> Iterator[None]:
    """Raise SettingsError for an import in the block that fails since turnmill was installed without an extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "turnmill":
            raise
        raise SettingsError(
            f"{what} needs {error.name}, which is not installed. Install turnmill with its extra `{extra}`."
        ) from error
