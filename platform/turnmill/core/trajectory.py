"""Records of turns and episodes, for training, metrics, trajectory log and trajectory store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

StopReason = Literal["completed", "max_turns", "max_tokens", "timeout", "failed"]
"""Reason why an episode ended."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One generation of the policy and the observation that follows."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    log_probs: tuple[float, ...] = ()
    """Log-probs of the response tokens under the policy that generated them; empty if the engine returned none."""

    observation_ids: tuple[int, ...] = ()
    """Tokens after the response in the same context that no policy generated."""

    prompt_text: str = ""
    response_text: str = ""
    observation: str = ""
    action: str = ""
    """The executed action; the environment's default if the response contained none."""

    valid: bool = True
    reward: float = 0.0
    done: bool = False
    policy_version: int = 0
    unanswered: bool = False
    """True if the turn was stored before its tool was called; the complete turn follows it."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further metrics of this turn, such as `plan_length`."""

    asked_at: float = 0.0
    """Start of the generation, in seconds since 1970; 0 if unknown."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds spent waiting for generation and for tools."""

    tool_version: str = ""
    """Version of the trajectory at the tool server after the call, which the next call must find; empty if none."""

    images: tuple[bytes, ...] = ()
    """Image files of the observation that the policy reads, in the order of their placeholder tokens."""

    def __post_init__(self) -> None:
        if self.log_probs and len(self.log_probs) != len(self.response_ids):
            raise ValueError(
                f"A turn has {len(self.response_ids)} response tokens and {len(self.log_probs)} log-probs: "
                "give one for each token, or none."
            )


def complete_turns(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Return stored turns, with each unanswered turn replaced by the complete one after it, if there is one."""
    return tuple(turn for turn in turns[:-1] if not turn.unanswered) + tuple(turns[-1:])


@dataclass(frozen=True, slots=True)
class TrajectoryMetadata:
    """Facts about a trajectory that the store has from its beginning."""

    step: int = 0
    task: int = 0
    trajectory_id: str = ""
    """Id of the trajectory at tool servers."""


@dataclass(frozen=True, slots=True)
class TrajectoryOutcome:
    """The outcome of an ended trajectory."""

    stop_reason: StopReason = "completed"
    detail: str = ""
    """More specific stop reason of the agent loop."""

    cause: str | None = None
    """Kind of infrastructure that failed, if the stop reason is `failed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSummary:
    """Summary of an episode that did not fail, for training and metrics; the tokens are in its rows."""

    episode_id: str
    reward: float
    stop_reason: StopReason
    success: bool
    num_turns: int
    num_rows: int = 1
    policy_versions: tuple[int, int] = (0, 0)
    """Oldest and newest version of the policy that generated its tokens."""

    sampled_tokens: bytes = b""
    """All tokens as the engine generated them, packed by `token_integrity.pack_tokens`."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds spent on generation, on tools and in the loop itself."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics by name, without the prefix `turnmill/tool/`."""

    prediction: str | None = None
    """Answer that samples of a validation's task vote on; None if its source gives none."""

    row_rewards: bool = False
    """True if each row has rewards of its own; otherwise each row repeats the reward of the episode."""

    row_states: tuple[str, ...] = ()
    """Digest of the environment's state before each row, if rows are turns."""

    @property
    def rows_are_turns(self) -> bool:
        """True if each row is one turn."""
        return bool(self.row_states)


@dataclass(frozen=True, slots=True)
class EpisodeFailure:
    """An episode that failed because of infrastructure; it is counted, and not trained on."""

    episode_id: str
    cause: str
    """Kind of infrastructure that failed."""

    message: str
    num_turns: int
    seconds: Mapping[str, float]
    """Seconds spent on generation, on tools and in the loop itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnMetadata:
    """Facts about a turn that is a row of its own, for training and metrics."""

    episode_id: str = ""
    turn: int = 0
    """Number of the turn in its episode, from 0."""

    reward: float = 0.0
    done: bool = False
    truncated: bool = False
    """True if the turn limit ended the episode with this turn."""

    valid: bool = True
    plan_length: float = 0.0
    backtrack_length: float = 0.0
    episode_length: int = 0
    """Turns of the episode that ended with this turn; 0 if it goes on."""

    episode_reward: float = 0.0
    """Sum of the rewards of the episode up to this turn."""

    success: bool = False
    """True if the episode ended with this turn, as a success."""

    sampled_checksum: int = 0
    """`token_integrity.token_checksum` of the tokens as the engine generated them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentMetadata:
    """Facts about the turns of one slot in a step, for metrics; its bootstrap row carries them."""

    failure_causes: tuple[str, ...] = ()
    """Kind of infrastructure that failed, for each failed episode."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds spent on generation, on tools and in the loop itself."""
