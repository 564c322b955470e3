"""A tool, what it is called with, and what it answers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from turnmill.sandboxes.base import Sandbox
from turnmill.trajectories.base import Change, State


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a server gives its tools; `settings` holds what was set for tools by name, such as RETRIEVER_URL."""

    sandbox: Sandbox
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One action of one trajectory. `action` is the agent's text, `parsed` what the tool's `parse` made of it."""

    trajectory_id: str
    action: str
    parsed: str
    extra: Mapping[str, Any]
    state: State


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer. An observation that is a mapping has its text under `obs` and passes to the agent as it is."""

    observation: str | Mapping[str, Any]
    done: bool = False
    valid: bool = True
    change: Change | None = None


class Tool(ABC):
    """A tool keeps nothing of a trajectory in itself: `call` gets the state and returns the change."""

    name: ClassVar[str]
    stateful: ClassVar[bool] = False
    """Whether `call` reads or changes state; calls of a stateful tool follow one another within a trajectory."""

    requires: ClassVar[tuple[str, ...]] = ()
    """Packages or programs without which it cannot work, as they are installed; checked at start."""

    def __init__(self, context: ToolContext) -> None:
        self.context = context

    async def start(self) -> None:  # noqa: B027 (most tools need nothing)
        """Get ready, once, before the first call; raises ToolUnavailableError, naming what to install."""

    async def close(self) -> None:  # noqa: B027
        """Let go of what `start` took."""

    @abstractmethod
    def usage(self) -> str:
        """How an agent calls it, in one line."""

    @abstractmethod
    def parse(self, action: str) -> str | None:
        """What of an action is meant for this tool; None if it is not meant for it."""

    @abstractmethod
    async def call(self, call: ToolCall) -> ToolResult:
        """Do it. Bad input is an answer; what raises ToolFailedError is the fault of infrastructure."""
