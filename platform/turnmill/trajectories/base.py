"""Tool state, changes of it, and claims on calls."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

State = Mapping[str, bytes]
"""State of one tool in one trajectory: named parts, so that a call writes only those that it changes."""


@dataclass(frozen=True, slots=True)
class Change:
    """Change of a tool's state by a call."""

    written: State = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    forget: bool = False
    """Delete the tool's whole state first."""

    def removed_from(self, state: State) -> list[str]:
        """Return the names of a state's parts that go."""
        return [name for name in (state if self.forget else self.removed) if name not in self.written]

    def applied_to(self, state: State) -> State:
        """Return the state after the change."""
        removed = set(self.removed_from(state))
        kept = {name: value for name, value in state.items() if name not in removed}
        return MappingProxyType({**kept, **self.written})


@dataclass(frozen=True, slots=True)
class CallKey:
    """Identity of a call: its trajectory and its `call_id`; a call without an id is never repeated."""

    trajectory_id: str
    call_id: str | None
    digest: str = field(default="", compare=False)
    """Hexadecimal digest of the action, which a repeat must have as well; empty if it is not compared."""

    after: str = field(default="", compare=False)
    """Version that the trajectory has seen last, which the store must still have; empty if it is not compared."""

    @property
    def idempotency_key(self) -> str | None:
        """Text of 32 characters that tells the call and its action from all others; None for a call without an id."""
        if self.call_id is None:
            return None
        parts = f"{len(self.trajectory_id)} {self.trajectory_id} {self.call_id} {self.digest}"
        return action_digest(parts)


def action_digest(action: str) -> str:
    """Return the first 128 bits of an action's SHA-256, in hexadecimal digits."""
    return hashlib.sha256(action.encode(errors="surrogatepass")).hexdigest()[:32]


def version_of(token: int, call_id: str) -> str:
    """Return the version of a trajectory after a call: "TOKEN CALL_ID", as its record in the store begins."""
    return f"{token} {call_id}"


@dataclass(frozen=True, slots=True)
class Claim:
    """Exclusive right to execute a call. Every write carries its fencing token; a later claim makes it stale."""

    key: CallKey
    tool: str
    token: int
    state: State
    stateful: bool = True
    """True if other calls of the same tool and trajectory must wait."""

    version: int = 0
    """Fencing token of the last write of the state; 0 if it was never written."""

    @property
    def version_after(self) -> str:
        """Version of the trajectory once the call is committed; empty for a call without an id, or of a stateless tool.

        What a stateless tool did is not older where the store has lost its record: the trajectory goes on.
        """
        if self.key.call_id is None or not self.token or not self.stateful:
            return ""
        return version_of(self.token, self.key.call_id)


@dataclass(frozen=True, slots=True)
class Recorded:
    """Recorded result of a call that was already executed."""

    result: bytes
    version: str = field(default="", compare=False)
    """Version of the trajectory after the call; empty for a call of a stateless tool."""
