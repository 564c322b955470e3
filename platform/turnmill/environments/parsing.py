"""Finding the answer in what a policy wrote."""

import re
from collections.abc import Sequence

MARKERS = ("ACTION:", "action:", "Action")
"""What announces an action; the first of these that occurs counts, at its last place."""

_BACKTRACKING = re.compile(r"\b(?:however|different|but|wait|won't|can't|cannot|another)\b")


def has_marker(text: str) -> bool:
    """Whether the response announces its action."""
    return any(marker in text for marker in MARKERS)


def final_answer(text: str) -> str:
    """The words after the last marker, or the whole text where there is none; without space around them."""
    for marker in MARKERS:
        if marker in text:
            # "Action: look" and "Action look" are the same answer.
            text = text.rpartition(marker)[2].lstrip().removeprefix(":")
            break
    return text.strip()


def plan_length(text: str, actions: Sequence[str]) -> int:
    """How many actions a response mentions."""
    # Longest first, so that an action that begins another one does not hide it.
    names = "|".join(re.escape(action) for action in sorted(actions, key=len, reverse=True))
    return len(re.findall(rf"(?<!\w)(?:{names})(?!\w)", text.lower())) if names else 0


def backtrack_length(text: str) -> int:
    """How many words of a response take something back."""
    return len(_BACKTRACKING.findall(text.lower().replace("’", "'")))
