"""Decoding of the result of a session in the sandbox, all of which is untrusted."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from turnmill.tools.sandboxed.packing import unpack
from turnmill.trajectories.base import Change


@dataclass(frozen=True, slots=True)
class SessionResult:
    """Report of a session, and the change of its state."""

    report: Mapping[str, object]
    change: Change


def read_session_result(value: bytes | None, *, is_part: Callable[[str], bool], max_bytes: int) -> SessionResult | None:
    """Unpack a result; None if it is missing or malformed, and the state then stays unchanged."""
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
    return SessionResult(report, Change(written=written, removed=tuple(removed)))
