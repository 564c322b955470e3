"""What a source of tasks is."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from turnmill.jobs.options import EnvironmentOptions

Message = Mapping[str, str]
"""`role` and `content`, as chat templates take them."""


@dataclass(frozen=True, slots=True)
class Task:
    """One problem: what the policy reads, and what its answer is compared with."""

    number: int
    messages: Sequence[Message]
    truth: Any = None
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    """Goes with every tool call of the task."""

    use_tool: bool | None = None
    """Whether tools may be called; None leaves it to the agent."""

    row: Mapping[str, Any] = field(default_factory=dict)
    """The row of a data set that it comes from, for agent loops of verl's, which are given all of it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a trajectory came to, in words."""

    last: str
    """The last response alone."""

    responses: str
    """Everything the policy said."""

    whole: str
    """Responses and observations, as they followed each other."""


class TaskSource(ABC):
    """Tasks by number: the same number under the same seed is the same task, in every process."""

    name: ClassVar[str]
    """What `environment.name` of a job says."""

    Settings: ClassVar[type[EnvironmentOptions]] = EnvironmentOptions

    def __init__(self, options: Any, seed: int) -> None:
        self.options = options
        self.seed = seed

    def require_json(self) -> None:  # noqa: B027 (most sources make their tasks)
        """Raise SettingsError for a task whose `extra_info` no tool server can be told, as JSON cannot hold it."""

    @abstractmethod
    def training(self, number: int) -> Task:
        """The n-th task of a training run; there is no end of them."""

    @abstractmethod
    def validation(self, number: int) -> Task:
        """The n-th task of a validation, the same in each; training has others where the source has enough."""

    @abstractmethod
    def reward(self, task: Task, answer: Answer) -> float:
        """What an answer is worth; more than 0 counts as solved."""


def number_of(*parts: object) -> int:
    """A number that follows from its parts and from nothing else."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
