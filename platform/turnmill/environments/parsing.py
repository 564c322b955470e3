"""Parsing the action out of a response."""

from collections.abc import Sequence

MARKERS = ("ACTION:", "action:", "Action")
"""Markers before an action, by priority: the first that occurs in a response counts, at its last occurrence."""

_BACKTRACKING = ("however", "different", "but", "wait", "won't", "can't", "cannot", "another")


def has_marker(text: str) -> bool:
    """Return whether the response marks its action."""
    return _marker_in(text) is not None


def final_answer(text: str) -> str:
    """Return the text after the last marker, or the whole text if there is none, stripped."""
    if (marker := _marker_in(text)) is not None:
        # "Action: look" and "Action look" are the same answer.
        text = text.rpartition(marker)[2].lstrip().removeprefix(":")
    return text.strip()


def before_answer(text: str) -> str:
    """Return the text before the first marker, or the whole text if there is none, stripped."""
    if (marker := _marker_in(text)) is not None:
        text = text.partition(marker)[0]
    return text.strip()


def _marker_in(text: str) -> str | None:
    """Return the marker that counts; None if there is none."""
    return next((marker for marker in MARKERS if marker in text), None)


def plan_length(text: str, phrases: Sequence[str]) -> int:
    """Count the phrases for actions in a response, wherever they stand: `turn left` and `turning left`, as Verlog."""
    lower = text.lower()
    return sum(lower.count(phrase) for phrase in phrases)


def backtrack_length(text: str) -> int:
    """Count the words in a response that signal backtracking, also within others, as Verlog does: `but` in `button`."""
    lower = text.lower()
    return sum(lower.count(word) for word in _BACKTRACKING)
