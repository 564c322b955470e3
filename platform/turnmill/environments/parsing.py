"""Parsing the action out of a response."""

import re
from collections.abc import Sequence

MARKERS = ("ACTION:", "action:", "Action")
"""Markers before an action, by priority: the first that occurs in a response counts, at its last occurrence."""

_BACKTRACKING = re.compile(r"\b(?:however|different|but|wait|won't|can't|cannot|another)\b")


def has_marker(text: str) -> bool:
    """Return whether the response marks its action."""
    return any(marker in text for marker in MARKERS)


def final_answer(text: str) -> str:
    """Return the text after the last marker, or the whole text if there is none, stripped."""
    for marker in MARKERS:
        if marker in text:
            # "Action: look" and "Action look" are the same answer.
            text = text.rpartition(marker)[2].lstrip().removeprefix(":")
            break
    return text.strip()


def plan_length(text: str, actions: Sequence[str]) -> int:
    """Count the actions that a response mentions."""
    # Longest first, so that an action that begins another one does not hide it.
    names = "|".join(re.escape(action) for action in sorted(actions, key=len, reverse=True))
    return len(re.findall(rf"(?<!\w)(?:{names})(?!\w)", text.lower())) if names else 0


def backtrack_length(text: str) -> int:
    """Count the words of a response that signal backtracking, such as `however` and `wait`."""
    return len(_BACKTRACKING.findall(text.lower().replace("’", "'")))
