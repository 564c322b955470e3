"""Plain lines on the terminal."""

from rich.console import Console


def say(text: str, *, to: Console | None = None) -> None:
    """Print a text without markup and line wrapping."""
    (to or Console()).print(text, markup=False, highlight=False, soft_wrap=True)


def errors() -> Console:
    """Return the console of the standard error stream."""
    return Console(stderr=True)
