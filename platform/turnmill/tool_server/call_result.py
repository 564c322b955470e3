"""The result of a call, and the form in which the trajectory store records it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self


@dataclass(frozen=True, slots=True)
class CallResult:
    """One observation with its flags, as verl-tool's agent loop reads them."""

    observation: str | Mapping[str, object]
    done: bool
    valid: bool
    version: str = field(default="", compare=False)
    """Version of the trajectory after the call, which the call's claim has; empty if nothing was recorded."""

    waiting_seconds: float = field(default=0.0, compare=False)
    """Time that the call waited for the sandbox; it is not recorded."""

    def to_bytes(self) -> bytes:
        """Encode the result for the store; raises ValueError or TypeError if the observation is not JSON."""
        fields = {"observation": self.observation, "done": self.done, "valid": self.valid}
        # Escaped to ASCII, because output may contain half of a surrogate pair.
        return json.dumps(fields, separators=(",", ":"), allow_nan=False).encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes, version: str = "") -> Self:
        """Decode what `to_bytes` encoded."""
        return cls(**json.loads(data), version=version)


FINISHED = CallResult("", done=True, valid=True)


def unmatched_result(usage: str, *, done: bool) -> CallResult:
    """Return the result of an action that matches no tool."""
    observation = {"obs": "", "invalid_reason": "No valid tool found for action", "available_tools": usage}
    return CallResult(observation, done=done, valid=False)


def tool_error_result(tool: str, error: Exception, **more: str) -> CallResult:
    """Return the result of a call whose tool raised an exception, as verl-tool's server words it."""
    observation = {"obs": "", "error": f"Tool processing failed: {error}", "tool_type": tool, **more}
    return CallResult(observation, done=True, valid=False)
