"""Blocks of code in an agent's text."""

import json
import re
from collections.abc import Mapping
from typing import Any


def tagged(text: str, tag: str) -> list[str]:
    """What stands between `<tag>` and `</tag>`, block by block."""
    searched = up_to_last(f"</{tag}>", text)
    return [block.strip() for block in re.findall(rf"<{tag}>(.*?)</{tag}>", searched, re.DOTALL)]


def first_tagged(text: str, tag: str) -> str | None:
    """The first block of that tag; None if there is none."""
    return next(iter(tagged(text, tag)), None)


def fenced(text: str, language: str, *, gap: str = r"\n?") -> list[str]:
    """What stands between three backticks with that language (a pattern) and three backticks."""
    return [block.strip() for block in re.findall(rf"```{gap}(?:{language})(.*?)```", text, re.DOTALL)]


def last_tagged(text: str, tag: str) -> str | None:
    """The last block of that tag; None if there is none."""
    blocks = tagged(text, tag)
    return blocks[-1] if blocks else None


def function_call(action: str) -> Mapping[str, Any] | None:
    """The object in the first <tool_call> of an action, or an action that is one; None if it is no JSON object."""
    call = first_tagged(action, "tool_call")
    try:
        found = json.loads(action if call is None else call)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def stdin_of(action: str, given: object) -> bytes:
    """What the program of an action reads: its block of input, or else what came with the call."""
    blocks = re.findall(r"```input\n(.*?)\n```", up_to_last("\n```", action), re.DOTALL)
    text = blocks[0].strip() if blocks else given
    return encodable(text).encode() if isinstance(text, str) else b""


def encodable(text: str) -> str:
    """The text without halves of surrogate pairs, which JSON can write and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()


def fences_are_even(text: str) -> bool:
    """Whether every block of backticks that is opened is closed as well."""
    return text.count("```") % 2 == 0


def up_to_last(end: str, text: str) -> str:
    """The text as far as a block can reach. From every beginning of one after it, a search would go on in vain to the
    end of the text: an agent that repeats itself would keep the event loop busy for seconds."""
    return "".join(text.rpartition(end)[:2])
