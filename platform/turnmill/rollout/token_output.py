"""verl's response of an inference engine, with static types.

At run time this is verl's own class. For type checkers, the fields that this package uses are declared here.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import BaseModel

    class TokenOutput(BaseModel):
        """The response of an inference engine."""

        token_ids: list[int]
        log_probs: list[float] | None = None
        stop_reason: str | None = None
        extra_fields: dict[str, int | None] = {}
        """Of the fields that engines add, only policy versions are read."""
else:
    from verl.workers.rollout.replica import TokenOutput

__all__ = ["TokenOutput"]
