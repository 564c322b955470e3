"""Base class of task sources."""

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from turnmill.core.errors import SettingsError
from turnmill.jobs.options import EnvironmentOptions
from turnmill.tasks.reward_model import RewardModel

Message = Mapping[str, str]
"""`role` and `content`, as chat templates take them."""


@dataclass(frozen=True, slots=True)
class Task:
    """One problem: the prompt that the policy reads, and the correct answer."""

    number: int
    """Number within the source's training or validation tasks."""

    messages: Sequence[Message]
    """Prompt as a chat."""

    truth: Any = None
    """Correct answer, in the form that the source's `reward` takes."""

    extra_info: Mapping[str, Any] = field(default_factory=dict)
    """Data that is sent with every tool call of the task; it must be JSON-serializable."""

    use_tool: bool | None = None
    """True or False if tools may or may not be called; None leaves it to the agent's settings."""

    row: Mapping[str, Any] = field(default_factory=dict)
    """Row of the data set that the task comes from, which is passed to verl's agent loops."""


Text = str | Callable[[], str]
"""A text, or a function that returns it."""


class Answer:
    """Text of a finished trajectory, as input of a reward; what a function returns is made when it is first read."""

    def __init__(self, last: Text, responses: Text, whole: Text) -> None:
        self._last, self._responses, self._whole = last, responses, whole

    @cached_property
    def last(self) -> str:
        """Last response."""
        return self._last if isinstance(self._last, str) else self._last()

    @cached_property
    def responses(self) -> str:
        """All responses, without observations."""
        return self._responses if isinstance(self._responses, str) else self._responses()

    @cached_property
    def whole(self) -> str:
        """Responses and observations, in order."""
        return self._whole if isinstance(self._whole, str) else self._whole()


class TaskSource(ABC):
    """Tasks by number; the same number and seed must give the same task in every process.

    A subclass sets `name` and implements `training`, `validation` and `reward`; a job names it by its import path,
    `environment.name: package.module:Class`.
    """

    name: ClassVar[str]
    """Name in `environment.name` of a job."""

    Settings: ClassVar[type[EnvironmentOptions]] = EnvironmentOptions
    """Model of `environment.options`; `__init__` is given an instance of it."""

    rewarded_by_program: ClassVar[bool] = False
    """Whether rewards are the result of an agent's program (`agent.reward: program`), and not computed here."""

    reward_model: RewardModel | None = None
    """The job's `rewardModel`, which `score` may ask; None for a job without one. It is set after `__init__`."""

    def __init__(self, options: Any, seed: int) -> None:
        """Take the validated options and `training.seed`; raise SettingsError for options that cannot work."""
        self.options = options
        self.seed = seed

    @property
    def asks_reward_model(self) -> bool | None:
        """Whether rewards ask the job's `rewardModel`; None if that is not known before one is computed."""
        return None

    def require_json(self) -> None:  # noqa: B027 (most sources make their tasks)
        """Raise SettingsError if the `extra_info` of a task cannot be sent to tool servers, because it is not JSON."""

    def keep(self, fits: Callable[[Task], bool]) -> None:
        """Drop the tasks that do not fit. Raises SettingsError, unless the source has a list of tasks."""
        raise SettingsError(
            f"agent.filterOverlongPrompts: {self.name} has no list of tasks to drop long ones from. Leave it out, or "
            "take tasks from a dataset."
        )

    @abstractmethod
    def training(self, number: int) -> Task:
        """Return the n-th training task; `number` is not bounded."""

    @abstractmethod
    def validation(self, number: int) -> Task:
        """Return the n-th validation task; it should not occur in training."""

    @abstractmethod
    def reward(self, task: Task, answer: Answer) -> float:
        """Return the reward of an answer; a positive one counts as solved."""

    async def score(self, task: Task, answer: Answer) -> float:
        """Return the reward of an answer: that of `reward`, in another thread, unless a subclass has to wait for it."""
        return float(await asyncio.to_thread(self.reward, task, answer))

    def prediction(self, task: Task, answer: Answer) -> str | None:
        """Return what the answer says, for votes among samples of a validation: equal texts are the same vote.

        None if there are no votes, which is the default; an answer without a prediction is an empty text.
        """
        return None


def stable_hash(*parts: object) -> int:
    """Return a 64-bit hash of the parts' texts that is the same in every process."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
