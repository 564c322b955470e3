"""Blocks of code in an agent's text."""

import json
import re
from collections.abc import Mapping


def tagged(text: str, tag: str) -> list[str]:
    """Return the texts between `<tag>` and `</tag>`."""
    searched = up_to_last(f"</{tag}>", text)
    return [block.strip() for block in re.findall(rf"<{tag}>(.*?)</{tag}>", searched, re.DOTALL)]


def first_tagged(text: str, tag: str) -> str | None:
    """Return the first block of that tag; None if there is none."""
    return next(iter(tagged(text, tag)), None)


def fenced(text: str, language: str, *, gap: str = r"\n?") -> list[str]:
    """Return the texts of code fences in that language, a regular expression."""
    return [block.strip() for block in re.findall(rf"```{gap}(?:{language})(.*?)```", text, re.DOTALL)]


def last_tagged(text: str, tag: str) -> str | None:
    """Return the last block of that tag; None if there is none."""
    blocks = tagged(text, tag)
    return blocks[-1] if blocks else None


def function_call(action: str) -> Mapping[str, object] | None:
    """Return the JSON object in the first <tool_call> of an action, or the action itself; None if it is not one."""
    call = first_tagged(action, "tool_call")
    try:
        found = json.loads(action if call is None else call)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def stdin_of(action: str, given: object) -> bytes:
    """Return the stdin of an action's program: its fence `input`, or else the input given with the call."""
    blocks = re.findall(r"```input\n(.*?)\n```", up_to_last("\n```", action), re.DOTALL)
    text = blocks[0].strip() if blocks else given
    return encodable(text).encode() if isinstance(text, str) else b""


def encodable(text: str) -> str:
    """Replace halves of surrogate pairs, which JSON can express and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()


def fences_are_even(text: str) -> bool:
    """Return whether every code fence that is opened is closed."""
    return text.count("```") % 2 == 0


def up_to_last(end: str, text: str) -> str:
    """Return the text up to the last end marker.

    From each start marker after it, a search would run in vain to the end of the text: an agent that repeats itself
    would block the event loop for seconds.
    """
    return "".join(text.rpartition(end)[:2])
