"""Summaries of trajectories for the list, accumulated turn by turn."""

import hashlib
from dataclasses import dataclass

import msgspec

from turnmill.observability import json_lines

TRAINING, VALIDATION, IN_FLIGHT = "training", "validation", "in flight"
OUTCOMES = ("solved", "unsolved", "failed", "unfinished", "in flight", "ended")
"""Outcomes; the last two are those of trajectories in a store, which does not know if the task was solved."""


class TurnLine(msgspec.Struct, gc=False):
    """The fields of a line of the log that a summary needs; other fields are not parsed."""

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
        """True if this is the episode's last turn."""
        return self.done or self.stop_reason is not None or self.failed_cause is not None

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the response."""
        ids = bytes(self.response_ids)
        return ids.count(b",") + 1 if len(ids) > 2 else 0


_decode = msgspec.json.Decoder(TurnLine).decode


def read_line(line: bytes) -> TurnLine | None:
    """Parse a line of the log; None if it is incomplete or not a turn."""
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
    """Summary of a trajectory; its fields are the columns of the index."""

    id: int
    key: str
    """Key of its page, the same if the index is rebuilt."""

    run: str
    kind: str
    name: str
    environment: str
    number: int
    """Number of the environment or the task."""

    task: bytes
    """Hash of environment, seed and prompt: equal for trajectories of the same task."""

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
    """1 if further turns may follow, otherwise 0."""

    @classmethod
    def from_first_turn(cls, turn: TurnLine, *, id: int, key: str, run: str, kind: str, environment: str) -> "Summary":
        """Create the summary of a trajectory from its first turn."""
        environment = turn.environment_name or environment
        identity = f"{environment}\0{turn.environment if kind == VALIDATION else ''}\0{turn.seed}\0".encode()
        return cls(
            id=id,
            key=key,
            run=run,
            kind=kind,
            name=turn.episode,
            environment=environment,
            number=turn.environment,
            task=hashlib.blake2b(identity + bytes(turn.prompt), digest_size=8).digest(),
            first_step=turn.step,
            last_step=turn.step,
            first_version=turn.policy_version,
            last_version=turn.policy_version,
        )

    def add(self, turn: TurnLine) -> None:
        """Add the next turn."""
        # The record of a failure is not a turn: the policy generated nothing.
        is_turn = turn.failed_cause is None or turn.num_tokens > 0
        self.turns += is_turn
        self.tokens += turn.num_tokens
        self.reward += turn.reward or 0.0
        self.seconds += sum(turn.seconds.values())
        self.last_step = max(self.last_step, turn.step)
        if is_turn:
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


def as_row(summary: Summary) -> tuple[object, ...]:
    """Return a summary's values in the order of the columns."""
    return tuple(getattr(summary, name) for name in COLUMNS)


COLUMNS = tuple(Summary.__slots__)
