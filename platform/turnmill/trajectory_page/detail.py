"""One trajectory as its page shows it."""

import contextlib
import json
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turnmill.observability.trajectory_log import ADVANTAGES, TurnRecord
from turnmill.trajectory_page.summary import TRAINING, Summary
from turnmill.trajectory_page.tokens import Vocabulary, columns, printable

Worth = Mapping[int, Sequence[float | None]] | float | None
"""The advantages of a trajectory: of each turn's tokens, or one of them all; None in place of what is no number."""


@dataclass(frozen=True, slots=True)
class TurnView:
    """A turn, ready to be shown; every text of it is to be escaped."""

    number: int
    record: TurnRecord
    played: bool
    """Whether the policy was asked; the line that tells of a failure is no turn."""

    prompt: str
    response: str
    action: str
    observation: str
    tokens: dict[str, Any]
    tool: list[tuple[str, str]]
    calls: list[dict[str, Any]]
    """Where one response called several tools, each of them."""

    gap_seconds: float | None
    """Between the end of the turn before and the question to the policy."""

    picture: str | None = None
    """What the environment looked like after it."""

    picture_before: str | None = None
    images: list[str] = field(default_factory=list)

    @property
    def ends(self) -> str:
        """Why the trajectory ends with it; empty where it goes on."""
        record = self.record
        if not record.ends_episode:
            return ""
        detail = f" ({printable(record.stop_detail)})" if record.stop_detail else ""
        return f"{record.failed_cause or record.stop_reason or 'completed'}{detail}"


def turn_views(turns: Sequence[TurnRecord], summary: Summary, vocabulary: Vocabulary, worth: Worth) -> list[TurnView]:
    """A trajectory's turns."""
    failed_step = turns[-1].step if turns and summary.outcome == "failed" else None
    views: list[TurnView] = []
    for position, turn in enumerate(turns):
        # Nothing is learned from validations, nor from what a failed episode has in the step that it failed in.
        trained = summary.kind == TRAINING and turn.step != failed_step
        played = bool(turn.response_ids or turn.response) or turn.failed_cause is None
        views.append(_view(turn, turns[position - 1] if position else None, vocabulary, worth, trained, played))
    return views


def _view(
    turn: TurnRecord, before: TurnRecord | None, vocabulary: Vocabulary, worth: Worth, trained: bool, played: bool
) -> TurnView:
    advantages = worth.get(turn.turn) if isinstance(worth, Mapping) else worth
    prompt = turn.prompt or "".join(vocabulary.texts(turn.prompt_ids) if vocabulary else [])
    calls = turn.tool.get("calls")
    return TurnView(
        number=turn.turn,
        record=turn,
        played=played,
        prompt=printable(prompt) or (f"{len(turn.prompt_ids)} tokens" if turn.prompt_ids else ""),
        response=printable(turn.response),
        action=printable(turn.action),
        observation=printable(turn.observation),
        tokens=columns(turn, vocabulary, advantages, trained=trained),
        tool=[(printable(str(name)), _shown(value)) for name, value in turn.tool.items() if name != "calls"],
        calls=[_call(call) for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else [],
        gap_seconds=_gap(before, turn),
    )


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    seconds = call.get("seconds")
    return {
        **{name: _shown(call.get(name, "")) for name in ("name", "arguments", "observation")},
        "seconds": float(seconds) if isinstance(seconds, int | float) else None,
    }


def _shown(value: Any) -> str:
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1))


def _gap(before: TurnRecord | None, turn: TurnRecord) -> float | None:
    if before is None or not before.asked_at or not turn.asked_at:
        return None
    return max(0.0, turn.asked_at - before.asked_at - sum(before.seconds.values()))


def read_worth(folder: Path, name: str, steps: set[int]) -> Worth:
    """What the log keeps of a trajectory's advantages; found without reading the lines of others."""
    by_turn: dict[int, Sequence[float | None]] = {}
    of_all: float | None = None
    for step in sorted(steps):
        for record in _records_of(folder / f"{ADVANTAGES}-{step:06d}.jsonl", name):
            if "advantages" in record:
                by_turn[int(record["turn"])] = record["advantages"]
            elif isinstance(record.get("advantage"), int | float):
                of_all = float(record["advantage"])
    return by_turn or of_all


def _records_of(path: Path, name: str) -> list[dict[str, Any]]:
    needle = b'{"episode":' + json.dumps(name, ensure_ascii=False).encode("utf-8", errors="replace") + b","
    found = []
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            start = content.find(needle)
            while start >= 0:
                content.seek(start)
                # Half a line is none; nor is one that shares its line with half of another.
                with contextlib.suppress(ValueError):
                    found.append(json.loads(content.readline()))
                start = content.find(needle, start + len(needle))
    except (FileNotFoundError, ValueError):
        # There is none, or it is empty.
        return []
    return found
