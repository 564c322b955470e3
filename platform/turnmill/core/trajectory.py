"""Records of turns and episodes: what the agent loops leave for learning, metrics, the log and the store."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

StopReason = Literal["completed", "max_turns", "max_tokens", "timeout", "failed"]
"""Why an episode ended."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One generation of the policy and the observation it brought."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    log_probs: tuple[float, ...] = ()
    """Log-probs of the response tokens under the policy that generated them; empty where the engine gave none."""

    observation_ids: tuple[int, ...] = ()
    """Tokens that follow the response in the same context and that no policy generated."""

    prompt_text: str = ""
    response_text: str = ""
    observation: str = ""
    action: str = ""
    """The action that was executed: the environment's default where the response held none."""

    valid: bool = True
    reward: float = 0.0
    done: bool = False
    policy_version: int = 0
    unanswered: bool = False
    """True if the turn was stored before its tool was called; the complete turn follows it."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further metrics of this turn, such as `plan_length`."""

    asked_at: float = 0.0
    """When the policy was asked, in seconds since 1970; 0 where unknown."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    """Time spent waiting for generation and for tools."""

    def __post_init__(self) -> None:
        if self.log_probs and len(self.log_probs) != len(self.response_ids):
            raise ValueError(
                f"A turn has {len(self.response_ids)} response tokens and {len(self.log_probs)} log-probs: "
                "give one for each token, or none."
            )


def complete_turns(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Return stored turns without the unanswered ones that a complete one follows; the last may be unanswered."""
    return tuple(turn for turn in turns[:-1] if not turn.unanswered) + tuple(turns[-1:])


@dataclass(frozen=True, slots=True)
class TrajectoryMetadata:
    """What the store knows of a trajectory from its beginning."""

    step: int = 0
    task: int = 0
    trajectory_id: str = ""
    """Its id at tool servers."""


@dataclass(frozen=True, slots=True)
class TrajectoryOutcome:
    """The outcome of an ended trajectory."""

    stop_reason: StopReason = "completed"
    detail: str = ""
    """The stop reason in the words of the agent loop."""

    cause: str | None = None
    """The kind of infrastructure that failed, if the stop reason is `failed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSummary:
    """What learning and metrics need to know of an episode that did not fail, beside the tokens of its rows."""

    episode_id: str
    reward: float
    stop_reason: StopReason
    success: bool
    num_turns: int
    num_rows: int = 1
    policy_versions: tuple[int, int] = (0, 0)
    """The oldest and the newest policy that generated its tokens."""

    sampled_tokens: bytes = b""
    """Every token as the engine generated it, packed by `token_integrity.pack_tokens`."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    """Time spent on generation, on tools and in the loop itself."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics by their names, without the prefix `turnmill/tool/`."""

    row_rewards: bool = False
    """True if each row has rewards of its own; else every row repeats the reward of the episode."""

    row_states: tuple[str, ...] = ()
    """Digest of the environment's state before each row, where each row is a turn."""

    @property
    def rows_are_turns(self) -> bool:
        """True if each row is one turn."""
        return bool(self.row_states)


@dataclass(frozen=True, slots=True)
class EpisodeFailure:
    """An episode that infrastructure ended, and not the policy: it is counted and never learned from."""

    episode_id: str
    cause: str
    """The kind of infrastructure that failed."""

    message: str
    num_turns: int
    seconds: Mapping[str, float]
    """Time spent on generation, on tools and in the loop itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnMetadata:
    """What learning and metrics need to know of a turn that is a row of its own, beside its tokens."""

    episode_id: str = ""
    turn: int = 0
    """Its number in the episode, from 0."""

    reward: float = 0.0
    done: bool = False
    truncated: bool = False
    """True if the limit of turns ended the episode with this turn."""

    valid: bool = True
    plan_length: float = 0.0
    backtrack_length: float = 0.0
    episode_length: int = 0
    """Turns of the episode that ended with this turn; 0 where it goes on."""

    episode_reward: float = 0.0
    """Sum of the rewards of the episode up to this turn."""

    sampled_checksum: int = 0
    """`token_integrity.token_checksum` of the tokens as the engine generated them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentMetadata:
    """What metrics need to know of one slot's turns of a step; its bootstrap row carries it."""

    failure_causes: tuple[str, ...] = ()
    """The kind of infrastructure that failed, for each episode that failed."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    """Time spent on generation, on tools and in the loop itself."""
