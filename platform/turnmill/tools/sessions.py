"""Reading what a session in the sandbox hands back; all of it comes from untrusted code."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from turnmill.tools.sandboxed.parts import unpack
from turnmill.trajectories.base import Change


@dataclass(frozen=True, slots=True)
class Answer:
    """What a session says of itself, and what its state becomes."""

    report: Mapping[str, Any]
    change: Change


def read_answer(value: bytes | None, *, is_part: Callable[[str], bool], max_bytes: int) -> Answer | None:
    """None if there is none, or if it is none of ours: the code has meddled with it, and its state stays as it was."""
    if value is None:
        return None
    try:
        fields = unpack(value)
        report, removed = json.loads(fields["report"]), json.loads(fields["removed"])
        written = unpack(fields["written"])
    except (ValueError, KeyError, RecursionError):
        return None
    names = [*written, *removed] if isinstance(removed, list) else [None]
    is_whole = isinstance(report, dict) and all(isinstance(name, str) and is_part(name) for name in names)
    if not is_whole or sum(map(len, written.values())) > max_bytes:
        return None
    return Answer(report, Change(written=written, removed=tuple(removed)))
