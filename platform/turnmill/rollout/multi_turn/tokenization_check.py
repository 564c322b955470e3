"""Comparison of a trajectory's text with the chat template's rendering of its messages."""

from dataclasses import dataclass
from itertools import takewhile

NUM_CONTEXT_CHARACTERS = 10
"""Characters quoted before and after a difference."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Surroundings of the first difference, in each of the two texts."""

    template: str
    tokens: str


def find_difference(template: str, tokens: str, *, compare_whitespace: bool) -> Difference | None:
    """Return the first difference, or None; text that the template adds after the last response is ignored."""
    if template.startswith(tokens) or (
        not compare_whitespace and _without_whitespace(template).startswith(_without_whitespace(tokens))
    ):
        return None
    return _first_difference(template, tokens, compare_whitespace=compare_whitespace)


def _without_whitespace(text: str) -> str:
    return "".join(text.split())


def _first_difference(template: str, tokens: str, *, compare_whitespace: bool) -> Difference:
    one = _compared_positions(template, compare_whitespace)
    other = _compared_positions(tokens, compare_whitespace)
    same = sum(1 for _ in takewhile(lambda pair: template[pair[0]] == tokens[pair[1]], zip(one, other, strict=False)))
    return Difference(_surroundings(template, one, same), _surroundings(tokens, other, same))


def _compared_positions(text: str, compare_whitespace: bool) -> list[int]:
    return [position for position, character in enumerate(text) if compare_whitespace or not character.isspace()]


def _surroundings(text: str, positions: list[int], number: int) -> str:
    at = positions[number] if number < len(positions) else len(text)
    return text[max(0, at - NUM_CONTEXT_CHARACTERS) : at + NUM_CONTEXT_CHARACTERS]
