"""Format of observations in the context of an agent with tools, the same in training and in completions."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from turnmill.core.errors import SettingsError

MARKER = {"left": ("(truncated)...", ""), "right": ("", "...(truncated)"), "middle": ("...(truncated)...",) * 2}
INVALID_ACTION_NOTICE = "\nYour action is not valid, please check the format and try again."
_BEFORE, _INSIDE, _AFTER = "3c1f-before", "{obs}", "3c1f-after"


@dataclass(frozen=True, slots=True)
class TruncatedTokens:
    """Remaining parts of a sequence: its head, its tail, or both."""

    head: tuple[int, ...]
    tail: tuple[int, ...]
    is_whole: bool


def truncate_observation(
    ids: Sequence[int], limit: int, side: str, unsplittable: Collection[int] = frozenset()
) -> TruncatedTokens:
    """Return at most `limit` tokens; a run of one of the `unsplittable` ids is kept or dropped as a whole."""
    if len(ids) <= limit:
        return TruncatedTokens(tuple(ids), (), is_whole=True)
    in_front, behind = {"left": (0, limit), "right": (limit, 0), "middle": (limit // 2, limit - limit // 2)}[side]
    end = step_back(ids, in_front, unsplittable)
    start = step_forward(ids, len(ids) - behind, unsplittable)
    return TruncatedTokens(tuple(ids[:end]), tuple(ids[start:]), is_whole=False)


def step_back(ids: Sequence[int], position: int, unsplittable: Collection[int]) -> int:
    """Return the last position, up to a given one, that is inside no run of an `unsplittable` id."""
    while 0 < position < len(ids) and ids[position] in unsplittable and ids[position - 1] == ids[position]:
        position -= 1
    return position


def step_forward(ids: Sequence[int], position: int, unsplittable: Collection[int]) -> int:
    """Return the first position, from a given one on, that is inside no run of an `unsplittable` id."""
    while 0 < position < len(ids) and ids[position] in unsplittable and ids[position - 1] == ids[position]:
        position += 1
    return position


def separator_messages(role: str) -> list[dict[str, str]]:
    """Return a chat from whose rendering `rendered_separator` reads the text around an observation."""
    return [
        {"role": "user", "content": _BEFORE},
        {"role": "assistant", "content": _AFTER},
        {"role": role, "content": _INSIDE},
    ]


def rendered_separator(text: str) -> str:
    """Return the text between a response and the next one, with `{obs}` in the place of the observation."""
    return text.rpartition(_AFTER)[2]


def split_separator(separator: str, turn_end: str, *, name: str) -> tuple[str, str]:
    """Return the text before and after an observation, without the end of the response's turn.

    Raises SettingsError, which calls the separator `name`, if it has no place for the observation.
    """
    prefix, found, suffix = separator.removeprefix(turn_end).partition(_INSIDE)
    if not found:
        raise SettingsError(
            f"{name}: {separator!r} has no placeholder {{obs}} for the observation. Add it; "
            "tokens that call a tool are stop tokens."
        )
    return prefix, suffix
