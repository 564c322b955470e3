"""Blocks of code in an agent's text."""

import re


def tagged(text: str, tag: str) -> list[str]:
    """What stands between `<tag>` and `</tag>`, block by block."""
    return [block.strip() for block in re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)]


def fenced(text: str, language: str, *, gap: str = r"\n?") -> list[str]:
    """What stands between three backticks with that language (a pattern) and three backticks."""
    return [block.strip() for block in re.findall(rf"```{gap}(?:{language})(.*?)```", text, re.DOTALL)]


def last_tagged(text: str, tag: str) -> str | None:
    """The last block of that tag; None if there is none."""
    blocks = tagged(text, tag)
    return blocks[-1] if blocks else None


def stdin_of(action: str, given: object) -> bytes:
    """What the program of an action reads: its block of input, or else what came with the call."""
    blocks = re.findall(r"```input\n(.*?)\n```", action, re.DOTALL)
    text = blocks[0].strip() if blocks else given
    return encodable(text).encode() if isinstance(text, str) else b""


def encodable(text: str) -> str:
    """The text without halves of surrogate pairs, which JSON can write and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()


def fences_are_even(text: str) -> bool:
    """Whether every block of backticks that is opened is closed as well."""
    return text.count("```") % 2 == 0
