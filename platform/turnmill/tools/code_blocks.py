"""Extraction of code blocks from an agent's text.

An agent that repeats itself must not block the event loop: what is searched ends with the last end marker, or is
matched by RE2, whose time is linear in the length of the text. With Python's `re`, each start marker without an end
costs a search to the end of the text.
"""

import json
import re
from collections.abc import Mapping, Sequence

import re2


def tagged(text: str, tag: str) -> list[str]:
    """Return the texts between `<tag>` and `</tag>`."""
    searched = up_to_last(f"</{tag}>", text)
    return [block.strip() for block in re.findall(rf"<{tag}>(.*?)</{tag}>", searched, re.DOTALL)]


def first_tagged(text: str, tag: str) -> str | None:
    """Return the first block with a tag; None if there is none."""
    return next(iter(tagged(text, tag)), None)


def fenced(text: str, language: str, *, gap: str = r"\n?") -> list[str]:
    """Return the texts of code fences whose language matches a regular expression."""
    return [block.strip() for block in re.findall(rf"```{gap}(?:{language})(.*?)```", text, re.DOTALL)]


def last_tagged(text: str, tag: str) -> str | None:
    """Return the last block with a tag; None if there is none."""
    blocks = tagged(text, tag)
    return blocks[-1] if blocks else None


def function_call(action: str) -> Mapping[str, object] | None:
    """Return the JSON object in the first <tool_call> of an action, or the action as JSON; None if it is neither."""
    call = first_tagged(action, "tool_call")
    try:
        found = json.loads(action if call is None else call)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def stdin_of(action: str, given: object) -> bytes:
    """Return the stdin of an action's program: its code fence `input`, or the input given with the call."""
    blocks = re.findall(r"```input\n(.*?)\n```", up_to_last("\n```", action), re.DOTALL)
    text = blocks[0].strip() if blocks else given
    return encodable(text).encode() if isinstance(text, str) else b""


def encodable(text: str) -> str:
    """Replace halves of surrogate pairs, which JSON can express and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()


def fences_are_even(text: str) -> bool:
    """Return True if every code fence is closed."""
    return text.count("```") % 2 == 0


def up_to_last(end: str, text: str) -> str:
    """Return the text up to the last end marker."""
    return "".join(text.rpartition(end)[:2])


def find_all(pattern: str, text: str) -> Sequence[str]:
    """Return the matches of a pattern without groups, or of its only group, as `re.findall` does, in linear time."""
    found: Sequence[str] = re2.findall(pattern, encodable(text))
    return found
