"""Turns of a trajectory for the page."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turnmill.observability.advantage_log import AdvantageLog
from turnmill.observability.trajectory_log import TurnRecord
from turnmill.trajectory_page.summary import TRAINING, Summary
from turnmill.trajectory_page.tokens import TokenColumns, Vocabulary, printable, token_columns

Advantages = Mapping[int, Sequence[float | None]] | float | None
"""Advantages of a trajectory: for each turn one per token, one for all tokens, or None."""


@dataclass(frozen=True, slots=True)
class TurnView:
    """A turn as text, which the template escapes."""

    number: int
    record: TurnRecord
    is_turn: bool
    """False for a record that only reports the failure of the episode."""

    prompt: str
    response: str
    action: str
    observation: str
    tokens: TokenColumns
    tool: list[tuple[str, str]]
    calls: list[dict[str, str | float | None]]
    """Tool calls of the response, if it made several."""

    gap_seconds: float | None
    """Time between the end of the previous turn and the request to the policy."""

    frame_url: str | None = None
    """Image of the environment after the turn."""

    first_frame_url: str | None = None
    """Image of the environment before the first turn."""

    image_urls: list[str] = field(default_factory=list)

    @property
    def end_reason(self) -> str:
        """Reason why the trajectory ends with this turn; empty if it does not."""
        record = self.record
        if not record.ends_episode:
            return ""
        detail = f" ({printable(record.stop_detail)})" if record.stop_detail else ""
        return f"{record.failed_cause or record.stop_reason or 'completed'}{detail}"


def build_turn_views(
    turns: Sequence[TurnRecord], summary: Summary, vocabulary: Vocabulary, advantages: Advantages
) -> list[TurnView]:
    """Return the views of a trajectory's turns."""
    failed_step = turns[-1].step if turns and summary.outcome == "failed" else None
    views: list[TurnView] = []
    for position, turn in enumerate(turns):
        # No gradient comes from validations, nor from the turns of a failed episode in the step in which it failed.
        trained = summary.kind == TRAINING and turn.step != failed_step
        is_turn = bool(turn.response_ids or turn.response) or turn.failed_cause is None
        before = turns[position - 1] if position else None
        of_turn = advantages.get(turn.turn) if isinstance(advantages, Mapping) else advantages
        views.append(_view(turn, before, vocabulary, of_turn, trained, is_turn))
    return views


def _view(
    turn: TurnRecord,
    before: TurnRecord | None,
    vocabulary: Vocabulary,
    advantages: Sequence[float | None] | float | None,
    trained: bool,
    is_turn: bool,
) -> TurnView:
    prompt = turn.prompt or "".join(vocabulary.decode(turn.prompt_ids) if vocabulary else [])
    calls = turn.tool.get("calls")
    return TurnView(
        number=turn.turn,
        record=turn,
        is_turn=is_turn,
        prompt=printable(prompt) or (f"{len(turn.prompt_ids)} tokens" if turn.prompt_ids else ""),
        response=printable(turn.response),
        action=printable(turn.action),
        observation=printable(turn.observation),
        tokens=token_columns(turn, vocabulary, advantages, trained=trained),
        tool=[(printable(str(name)), _as_text(value)) for name, value in turn.tool.items() if name != "calls"],
        calls=[_call(call) for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else [],
        gap_seconds=_gap_seconds(before, turn),
    )


def _call(call: Mapping[str, object]) -> dict[str, str | float | None]:
    seconds = call.get("seconds")
    return {
        **{name: _as_text(call.get(name, "")) for name in ("name", "arguments", "observation")},
        "seconds": float(seconds) if isinstance(seconds, int | float) else None,
    }


def _as_text(value: Any) -> str:
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1))


def _gap_seconds(before: TurnRecord | None, turn: TurnRecord) -> float | None:
    if before is None or not before.asked_at or not turn.asked_at:
        return None
    return max(0.0, turn.asked_at - before.asked_at - sum(before.seconds.values()))


def read_advantages(folder: Path, name: str, steps: set[int]) -> Advantages:
    """Read a trajectory's advantages from the log."""
    by_turn: dict[int, Sequence[float | None]] = {}
    shared: float | None = None
    for step in sorted(steps):
        of_turns, of_trajectory = AdvantageLog(folder).read_episode(step, name)
        by_turn |= of_turns
        shared = shared if of_trajectory is None else of_trajectory
    return by_turn or shared
