"""What a call answers, and the form in which the trajectory store records it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Answer:
    """One observation with its flags, as verl-tool's agent loop reads them."""

    observation: str | Mapping[str, Any]
    done: bool
    valid: bool

    def to_bytes(self) -> bytes:
        """For the record; raises ValueError or TypeError where the observation is no JSON."""
        fields = {"observation": self.observation, "done": self.done, "valid": self.valid}
        # Escaped, so that half of a surrogate pair in some output passes.
        return json.dumps(fields, separators=(",", ":"), allow_nan=False).encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """What `to_bytes` wrote."""
        return cls(**json.loads(data))


FINISHED = Answer("", done=True, valid=True)


def unmatched(usage: str, *, done: bool) -> Answer:
    """No tool takes the action."""
    observation = {"obs": "", "invalid_reason": "No valid tool found for action", "available_tools": usage}
    return Answer(observation, done=done, valid=False)


def tool_failed(tool: str, error: Exception) -> Answer:
    """A tool raised what it should not: the fault is its own, and a repeat would meet it again."""
    observation = {"obs": "", "error": f"Tool processing failed: {error}", "tool_type": tool}
    return Answer(observation, done=True, valid=False)
