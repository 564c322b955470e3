"""Packs the result of a session: a report, and the change of its state."""

import json
from collections.abc import Mapping

from turnmill.tools.sandboxed.packing import pack


def pack_session_result(report: Mapping[str, object], before: Mapping[str, bytes], after: Mapping[str, bytes]) -> bytes:
    """Pack the report with the parts of the state that were written or removed."""
    written = {name: part for name, part in after.items() if before.get(name) != part}
    removed = [name for name in before if name not in after]
    return pack(
        {"report": json.dumps(report).encode(), "written": pack(written), "removed": json.dumps(removed).encode()}
    )


def not_kept_notice(names_with_reasons: list[str]) -> str:
    """Return a notice of everything that is missing in the next turn; empty if nothing is."""
    return f"[Not kept for the next turn: {'; '.join(names_with_reasons)}]" if names_with_reasons else ""
