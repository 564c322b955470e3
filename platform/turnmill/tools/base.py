"""Interface of tools: a tool, its context, its calls and their results."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from turnmill.sandboxes.base import Sandbox
from turnmill.trajectories.base import Change, State


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Resources of a server for its tools."""

    sandbox: Sandbox
    """Sandbox for untrusted code."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """Values of settings of tools by name, such as RETRIEVER_URL, from `--set` and the environment."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool for a trajectory."""

    trajectory_id: str
    action: str
    """Whole text of the agent's response."""

    parsed: str
    """Part of the action that the tool's `parse` returned."""

    extra: Mapping[str, Any]
    """`extra_fields` of the action in the request: JSON from outside, to be validated before use."""

    state: State
    """State of the tool for this trajectory: bytes by name, as earlier calls wrote it; empty for a stateless tool."""

    idempotency_key: str | None = None
    """The same text each time the call is executed, for services that refuse to do a thing twice; None without an id.

    A call whose server ended before its result was recorded is executed again.
    """


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call."""

    observation: str | Mapping[str, object]
    """Text, or a JSON object with the text under `obs`, which is passed to the agent unchanged."""

    done: bool = False
    """True if the trajectory ends with this call."""

    valid: bool = True
    """False if the agent's action was invalid."""

    change: Change | None = None
    """Change of the tool's state; None leaves it unchanged."""


class Tool(ABC):
    """A tool that a server offers to agents.

    A tool object stores nothing about trajectories: `call` gets the state and returns its change, so that any replica
    of the server may execute the next call. One object serves all trajectories, with concurrent calls.
    """

    name: ClassVar[str]
    """Name under which it is served."""

    stateful: ClassVar[bool] = False
    """True if `call` reads or changes state; calls of a trajectory are then executed one after the other."""

    keeps_objects: ClassVar[bool] = False
    """True if it keeps objects of a trajectory, such as a shell, in its process, to which all its calls must come."""

    requires: ClassVar[tuple[str, ...]] = ()
    """Python distributions and programs that must be installed, checked when the server starts."""

    def __init__(self, context: ToolContext) -> None:
        """Read the settings; raises SettingsError for an invalid one, ToolUnavailableError for a missing one."""
        self.context = context

    async def start(self) -> None:  # noqa: B027 (most tools need nothing)
        """Open connections, once, before the first call; raises ToolUnavailableError that names what is missing."""

    async def close(self) -> None:  # noqa: B027
        """Close what `start` opened."""

    async def forget(self, trajectory_id: str) -> None:  # noqa: B027
        """Delete what is kept of a trajectory besides its state: it is finished."""

    @abstractmethod
    def usage(self) -> str:
        """Return one line that explains to an agent how to call the tool."""

    @abstractmethod
    def parse(self, action: str) -> str | None:
        """Return the part of an action that this tool executes; None if the action is not for it."""

    @abstractmethod
    async def call(self, call: ToolCall) -> ToolResult:
        """Execute a call. Invalid input yields an observation, not an error.

        Raises ToolFailedError if a service behind the tool fails, and SandboxError if the sandbox does; the call then
        had no effect and may be repeated.
        """
