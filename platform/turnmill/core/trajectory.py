"""The record of an episode: its turns, their tokens and rewards, and why it ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from turnmill.core.errors import EpisodeError

StopReason = Literal["completed", "max_turns", "max_tokens", "timeout", "failed"]
"""Why an episode ended."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One generation of the policy and the observation it brought."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    log_probs: tuple[float, ...] = ()
    """Of the response tokens under the policy that sampled them; empty where the engine gave none."""

    observation_ids: tuple[int, ...] = ()
    """Tokens that follow the response in the same context and that nobody sampled."""

    prompt_text: str = ""
    response_text: str = ""
    observation: str = ""
    action: str = ""
    """What the environment executed: the default action where the response held none."""

    valid: bool = True
    reward: float = 0.0
    done: bool = False
    policy_version: int = 0
    unanswered: bool = False
    """Whether its tool was still to be called when it was kept; the whole turn follows it."""

    metrics: Mapping[str, float] = field(default_factory=dict)
    """What else was measured of this turn, such as `plan_length`."""

    asked_at: float = 0.0
    """When the policy was asked, in seconds since 1970; 0 where nobody looked."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    """What its time went to, by what was waited for."""

    def __post_init__(self) -> None:
        if self.log_probs and len(self.log_probs) != len(self.response_ids):
            raise ValueError(
                f"A turn has {len(self.response_ids)} response tokens and {len(self.log_probs)} log-probs: "
                "give one for each token, or none."
            )


def in_full(turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """Turns as they were kept, without those that stand there once more in full; the last one may be unanswered."""
    return tuple(turn for turn in turns[:-1] if not turn.unanswered) + tuple(turns[-1:])


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode from its first prompt to its stop reason."""

    episode_id: str
    environment: str
    task: str
    seed: int
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    failure_cause: str | None = None
    """The kind of infrastructure that failed; None unless the stop reason is `timeout` or `failed`."""

    failure_message: str | None = None

    @classmethod
    def from_error(
        cls,
        error: EpisodeError | TimeoutError,
        *,
        episode_id: str,
        environment: str,
        task: str,
        seed: int,
        turns: tuple[Turn, ...] = (),
    ) -> "Trajectory":
        """Record an episode that infrastructure ended, with the turns that came before."""
        timed_out = isinstance(error, TimeoutError)
        return cls(
            episode_id=episode_id,
            environment=environment,
            task=task,
            seed=seed,
            turns=turns,
            stop_reason="timeout" if timed_out else "failed",
            failure_cause="timeout" if isinstance(error, TimeoutError) else error.cause,
            failure_message=str(error) or type(error).__name__,
        )

    @property
    def num_turns(self) -> int:
        """How often the policy answered."""
        return len(self.turns)

    @property
    def num_response_tokens(self) -> int:
        """How many tokens the policy generated."""
        return sum(len(turn.response_ids) for turn in self.turns)

    @property
    def reward(self) -> float:
        """The sum of the turns' rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def failed(self) -> bool:
        """Whether infrastructure, and not the policy, ended it: such a trajectory is never learned from."""
        return self.failure_cause is not None

    @property
    def success(self) -> bool:
        """Whether the last turn was rewarded."""
        return not self.failed and bool(self.turns) and self.turns[-1].reward > 0
