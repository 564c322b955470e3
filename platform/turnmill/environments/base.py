"""What an environment is: the class its author writes."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from turnmill.core.seeds import VALIDATION_SEEDS
from turnmill.environments.parsing import final_answer
from turnmill.jobs.options import EnvironmentOptions

if TYPE_CHECKING:
    import numpy as np

__all__ = ["VALIDATION_SEEDS", "Environment", "EnvironmentOptions", "StepResult"]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one action brought."""

    observation: str
    reward: float = 0.0
    terminated: bool = False
    """The task is over: solved, lost or given up."""

    truncated: bool = False
    """The environment's own limit ended the episode."""

    info: Mapping[str, float] = field(default_factory=dict)
    """Numbers: `success`, `action_is_effective` and `action_is_valid` where they are known, and others."""


class Environment(ABC):
    """What an agent acts on during one episode, in words.

    The same seed and the same actions must bring the same observations: that is how an episode is
    carried on in another process.
    """

    name: ClassVar[str]
    """What `environment.name` of a job says."""

    Settings: ClassVar[type[EnvironmentOptions]] = EnvironmentOptions
    actions: tuple[str, ...]
    """Every action by its exact words; none where any text may be one, which `match_action` then judges."""

    default_action: str
    """Executed where a response holds no valid action."""

    def __init__(self, task: str | None, max_turns: int, options: Any) -> None:
        self.task = task
        self.max_turns = max_turns
        self.options = options

    @abstractmethod
    def reset(self, seed: int) -> str:
        """Begin the episode that `seed` stands for and tell the first observation."""

    @abstractmethod
    def step(self, action: str) -> StepResult:
        """Execute an action as `match_action` gives it."""

    @abstractmethod
    def instruction_prompt(self) -> str:
        """Explain role, goal and actions to a model that has never seen this environment."""

    def prepare(self, seed: int) -> None:  # noqa: B027 (most resets cost nothing)
        """Get ready for the reset with this seed, in a thread beside the episode in progress."""

    def compact_prompt(self) -> str:
        """State the goal in a few words, for a model that was trained on this environment."""
        return self.instruction_prompt()

    def state_key(self, observation: str) -> str:
        """What is the same wherever the situation is the same, for algorithms that compare turns by it (GiGPO).

        The observation, unless it says what has no part in the situation, such as a count of turns.
        """
        return observation

    def parse_action(self, text: str) -> str | None:
        """Find the action in a response; None if it holds none."""
        return self.match_action(final_answer(text))

    def match_action(self, answer: str) -> str | None:
        """The action that an answer means, in the words that `step` takes; None if it means none."""
        answer = self.repair(answer.strip().lower())
        return answer if answer in self.actions else None

    def repair(self, answer: str) -> str:
        """Undo spellings that certainly mean an action."""
        return answer

    def render(self) -> "np.ndarray":
        """Draw the present situation, shape (height, width, 3), 8 bits a channel."""
        raise NotImplementedError(
            f"The environment {self.name!r} cannot be drawn: leave validation.renderEpisodes at 0."
        )

    def close(self) -> None:  # noqa: B027 (most environments hold nothing)
        """Let go of what the episode held."""
