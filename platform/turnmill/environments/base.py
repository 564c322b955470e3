"""Base class of environments."""

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
    """Result of one action; the fields mean what they mean in gymnasium's `step`."""

    observation: str
    """Text that the policy reads next."""

    reward: float = 0.0
    """Finite number, as the environment defines it; penalties and `binaryReward` of the job are applied later."""

    terminated: bool = False
    """True if the task is over: solved, lost or given up."""

    truncated: bool = False
    """True if a limit of the environment itself ended the episode."""

    info: Mapping[str, float] = field(default_factory=dict)
    """Numbers for metrics: `success`, `action_is_effective` and `action_is_valid` where they are known, and others."""


class Environment(ABC):
    """A text environment: it turns actions into observations and rewards, one episode at a time.

    A subclass sets `name`, `actions` and `default_action` and implements `reset`, `step` and `instruction_prompt`; the
    other methods have defaults. One object plays many episodes, one after another, in a process of its own.

    It must be deterministic: the same seed and the same actions must produce the same observations, because an
    interrupted episode is resumed by replaying its actions in another process. An exception in any method fails the
    episode, not the run.
    """

    name: ClassVar[str]
    """Name in `environment.name` of a job."""

    Settings: ClassVar[type[EnvironmentOptions]] = EnvironmentOptions
    """Model of `environment.options`; `__init__` is given an instance of it."""

    tasks: ClassVar[tuple[str, ...] | None] = None
    """Values of `environment.task`, empty if there are none; None if `__init__` checks the task."""

    actions: tuple[str, ...]
    """All valid actions, in lower case; empty if actions are free text, which `match_action` then validates."""

    plan_phrases: tuple[str, ...] | None = None
    """Phrases, in lower case, that `turnmill/plan_length` counts in a response; None for `actions`."""

    default_action: str
    """Action that is executed if a response contains no valid one."""

    def __init__(self, task: str | None, max_turns: int, options: Any) -> None:
        """Take `environment.task`, the limit of turns and the validated options; raise SettingsError for wrong ones."""
        self.task = task
        self.max_turns = max_turns
        self.options = options

    @abstractmethod
    def reset(self, seed: int) -> str:
        """Start the episode of a seed and return its first observation.

        Seeds below `VALIDATION_SEEDS` (1,000,000) are used by validations, the others by training.
        """

    @abstractmethod
    def step(self, action: str) -> StepResult:
        """Execute an action, which is a return value of `match_action` or the default action."""

    @abstractmethod
    def instruction_prompt(self) -> str:
        """Return the prompt that explains role, goal and actions to a model that has never seen this environment."""

    def prepare(self, seed: int) -> None:  # noqa: B027 (most resets cost nothing)
        """Do slow work for a later `reset(seed)`; called from another thread while an episode is in progress."""

    def compact_prompt(self) -> str:
        """Return the goal in a few words, as the prompt of a model that was trained on this environment."""
        return self.instruction_prompt()

    def state_key(self, observation: str) -> str:
        """Return a key that is equal for equal states, for algorithms that compare turns by state (GiGPO).

        The default is the observation. Override it if observations contain what is not part of the state, such as a
        count of turns.
        """
        return observation

    def parse_action(self, text: str) -> str | None:
        """Return the action in a response, or None if it contains no valid one."""
        return self.match_action(final_answer(text))

    def match_action(self, answer: str) -> str | None:
        """Return the action that an answer means, in the form that `step` takes, or None if it means none.

        `answer` is the part of the response after its last `ACTION:` marker.
        """
        answer = self.repair(answer.strip().lower())
        return answer if answer in self.actions else None

    def remembered(self, response: str, action: str) -> str:
        """Return a response as later prompts show it; `action` is the one that was executed."""
        return response

    def repair(self, answer: str) -> str:
        """Normalize spellings that unambiguously mean an action; `answer` is stripped and in lower case."""
        return answer

    def render(self) -> "np.ndarray":
        """Draw the current state: shape (height, width, 3), uint8. Raises NotImplementedError if not overridden."""
        raise NotImplementedError(
            f"The environment {self.name!r} does not implement render(): leave validation.renderEpisodes at 0."
        )

    def close(self) -> None:  # noqa: B027 (most environments hold nothing)
        """Release the resources of the episode, such as connections and processes."""
