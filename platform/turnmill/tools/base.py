"""The interface of tools: a tool, the context and calls that it gets, and the results that it returns."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from turnmill.sandboxes.base import Sandbox
from turnmill.trajectories.base import Change, State


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Resources that a server gives to its tools."""

    sandbox: Sandbox
    """The sandbox for untrusted code."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """Values of settings of tools by name, such as RETRIEVER_URL, from `--set` and the environment."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One action of one trajectory."""

    trajectory_id: str
    action: str
    """The agent's whole text."""

    parsed: str
    """The part of the action that the tool's `parse` returned."""

    extra: Mapping[str, Any]
    """The item's `extra_fields` of the request: JSON from outside, to be checked before use."""

    state: State
    """The tool's state of this trajectory: bytes by name, as earlier calls wrote it; empty for a stateless tool."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call."""

    observation: str | Mapping[str, object]
    """Text, or a JSON object with the text under `obs`, which reaches the agent unchanged."""

    done: bool = False
    """The trajectory ends with this call."""

    valid: bool = True
    """False if the agent's action was at fault."""

    change: Change | None = None
    """The change of the tool's state; None leaves it as it is."""


class Tool(ABC):
    """A tool that a server offers to agents.

    A tool keeps nothing of a trajectory in itself: `call` gets the state and returns its change, so that any replica
    of the server may execute the next call. One instance serves all trajectories, with calls running concurrently.
    """

    name: ClassVar[str]
    """The name under which it is served."""

    stateful: ClassVar[bool] = False
    """True if `call` reads or changes state; calls of one trajectory are then executed one after the other."""

    requires: ClassVar[tuple[str, ...]] = ()
    """Distributions and programs that must be installed; checked when the server starts."""

    def __init__(self, context: ToolContext) -> None:
        """Read the settings; raises SettingsError for an invalid one, ToolUnavailableError for a missing one."""
        self.context = context

    async def start(self) -> None:  # noqa: B027 (most tools need nothing)
        """Open connections, once, before the first call; raises ToolUnavailableError that names what is missing."""

    async def close(self) -> None:  # noqa: B027
        """Close what `start` opened."""

    @abstractmethod
    def usage(self) -> str:
        """Return one line that tells an agent how to call the tool."""

    @abstractmethod
    def parse(self, action: str) -> str | None:
        """Return the part of an action that is meant for this tool; None if the action is not meant for it."""

    @abstractmethod
    async def call(self, call: ToolCall) -> ToolResult:
        """Execute a call. Invalid input yields an observation, not an error.

        Raises ToolFailedError if a service behind the tool fails, and SandboxError if the sandbox does: the call then
        had no effect and may be repeated.
        """
