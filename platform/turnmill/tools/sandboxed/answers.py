"""What a session hands back: a report, and what its state has become."""

import json
from collections.abc import Mapping
from typing import Any

from turnmill.tools.sandboxed.parts import pack


def pack_answer(report: Mapping[str, Any], before: Mapping[str, bytes], after: Mapping[str, bytes]) -> bytes:
    """Only the parts that differ travel."""
    written = {name: part for name, part in after.items() if before.get(name) != part}
    removed = [name for name in before if name not in after]
    return pack(
        {"report": json.dumps(report).encode(), "written": pack(written), "removed": json.dumps(removed).encode()}
    )


def not_kept(names_with_reasons: list[str]) -> str:
    """The notice of what the next turn will not find; empty if there is nothing."""
    return f"[Not kept for the next turn: {'; '.join(names_with_reasons)}]" if names_with_reasons else ""
