"""Whether a trajectory's text is what the chat template makes of its messages."""

from dataclasses import dataclass
from itertools import takewhile

SHOWN = 10
"""Characters that are shown before and after a difference."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where two texts part, and what each goes on with."""

    template: str
    tokens: str


def difference(template: str, tokens: str, *, blanks_count: bool) -> Difference | None:
    """Where they differ; what the template puts after the last response is in no context and does not count."""
    if template.startswith(tokens) or (not blanks_count and _solid(template).startswith(_solid(tokens))):
        return None
    return _first(template, tokens, blanks_count=blanks_count)


def _solid(text: str) -> str:
    return "".join(text.split())


def _first(template: str, tokens: str, *, blanks_count: bool) -> Difference:
    one, other = _counting(template, blanks_count), _counting(tokens, blanks_count)
    same = sum(1 for _ in takewhile(lambda pair: template[pair[0]] == tokens[pair[1]], zip(one, other, strict=False)))
    return Difference(_around(template, one, same), _around(tokens, other, same))


def _counting(text: str, blanks_count: bool) -> list[int]:
    """The positions of the characters that are compared."""
    return [position for position, character in enumerate(text) if blanks_count or not character.isspace()]


def _around(text: str, positions: list[int], number: int) -> str:
    at = positions[number] if number < len(positions) else len(text)
    return text[max(0, at - SHOWN) : at + SHOWN]
