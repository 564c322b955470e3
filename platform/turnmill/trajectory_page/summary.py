"""What a list says of a trajectory, gathered turn by turn."""

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

from turnmill.observability import json_lines

TRAINING, VALIDATION, IN_FLIGHT = "training", "validation", "in flight"
OUTCOMES = ("solved", "unsolved", "failed", "unfinished", "in flight", "ended")
"""The last two are of trajectories in a store, which does not know what those that ended were worth."""


class TurnLine(msgspec.Struct, gc=False):
    """Of a line of the log, what a list needs; the rest is skipped unread."""

    episode: str
    turn: int
    step: int
    policy_version: int
    prompt: msgspec.Raw
    environment: int = 0
    reward: float | None = None
    response_ids: msgspec.Raw = msgspec.Raw(b"[]")
    done: bool = False
    stop_reason: str | None = None
    failed_cause: str | None = None
    environment_name: str = ""
    seed: int | None = None
    seconds: dict[str, float] = {}

    @property
    def ends_episode(self) -> bool:
        """Whether no turn of the same episode follows."""
        return self.done or self.stop_reason is not None or self.failed_cause is not None

    @property
    def num_tokens(self) -> int:
        """Tokens of the response."""
        ids = bytes(self.response_ids)
        return ids.count(b",") + 1 if len(ids) > 2 else 0


_decode = msgspec.json.Decoder(TurnLine).decode


def read_line(line: bytes) -> TurnLine | None:
    """The turn of one line; None if its writer was killed before the end of it, or if it is none."""
    try:
        return _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        record = json_lines.decode(line, "episode")
    try:
        return None if record is None else _decode(json_lines.encode(record))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


@dataclass(slots=True)
class Summary:
    """One row of the list; the names of the fields are those of the index's columns."""

    id: int
    key: str
    """What its page is called: the same whenever the index is made anew."""

    run: str
    kind: str
    name: str
    environment: str
    number: int
    """Of the environment or the task among its like."""

    task: bytes
    """The same for trajectories that began alike: same environment, seed and prompt."""

    first_step: int
    last_step: int
    first_version: int
    last_version: int
    turns: int = 0
    tokens: int = 0
    reward: float = 0.0
    seconds: float = 0.0
    outcome: str = "unfinished"
    reason: str = ""
    open: int = 1
    """1 while turns of it may follow."""

    @classmethod
    def of_first(cls, turn: TurnLine, *, id: int, key: str, run: str, kind: str, environment: str) -> "Summary":
        """A trajectory of which one turn is known."""
        environment = turn.environment_name or environment
        began = f"{environment}\0{turn.environment if kind == VALIDATION else ''}\0{turn.seed}\0".encode()
        return cls(
            id=id,
            key=key,
            run=run,
            kind=kind,
            name=turn.episode,
            environment=environment,
            number=turn.environment,
            task=hashlib.blake2b(began + bytes(turn.prompt), digest_size=8).digest(),
            first_step=turn.step,
            last_step=turn.step,
            first_version=turn.policy_version,
            last_version=turn.policy_version,
        )

    def add(self, turn: TurnLine) -> None:
        """Take the next turn in."""
        # The line that tells of a failure is no turn: nobody was asked.
        played = turn.failed_cause is None or turn.num_tokens > 0
        self.turns += played
        self.tokens += turn.num_tokens
        self.reward += turn.reward or 0.0
        self.seconds += sum(turn.seconds.values())
        self.last_step = max(self.last_step, turn.step)
        if played:
            self.first_version = min(self.first_version, turn.policy_version)
            self.last_version = max(self.last_version, turn.policy_version)
        if turn.ends_episode:
            self.open = 0
            self.outcome = _outcome(turn)
            self.reason = turn.failed_cause or turn.stop_reason or "completed"


def _outcome(last: TurnLine) -> str:
    if last.failed_cause is not None or last.stop_reason == "failed":
        return "failed"
    return "solved" if last.stop_reason in (None, "completed") and (last.reward or 0.0) > 0 else "unsolved"


def as_row(summary: Summary) -> tuple[Any, ...]:
    """Its values, in the order of the columns."""
    return tuple(getattr(summary, name) for name in COLUMNS)


COLUMNS = tuple(Summary.__slots__)
