"""What is kept of a trajectory between calls, and how a call claims it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

State = Mapping[str, bytes]
"""What one tool remembers of one trajectory: named parts, so that a call writes just the parts that it changed."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a call makes of a tool's state."""

    written: State = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    forget: bool = False
    """Drop the tool's whole state first."""


@dataclass(frozen=True, slots=True)
class CallKey:
    """A call is known by its trajectory and its `call_id`; without one it is a call that nobody repeats."""

    trajectory_id: str
    call_id: str | None


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to do a call: its fencing token goes with every write, and a later claim makes it stale."""

    key: CallKey
    tool: str
    token: int
    state: State
    stateful: bool = True
    """Whether it keeps the trajectory's other calls of the tool waiting."""

    version: int = 0
    """The token that wrote the state; 0 where nothing has."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a call did when it was done before."""

    result: bytes
