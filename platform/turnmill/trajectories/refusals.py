"""Reasons for which the store refuses to begin a call."""

from collections.abc import Sequence

from turnmill.core.errors import CallMismatchError, LostWriteError, PoisonCallError, StaleClaimError, StoreError
from turnmill.trajectories.base import CallKey


def refusal(key: CallKey, answer: bytes, rest: Sequence[bytes]) -> StoreError:
    """Return the error for an answer of `scripts/begin.lua` that is neither a claim nor a record."""
    match answer:
        case b"gone":
            return StaleClaimError(
                f"Trajectory {key.trajectory_id!r} was finished while call {key.call_id!r} was in progress: "
                "it will not be executed any more. Send a call with another call_id."
            )
        case b"other":
            return CallMismatchError(f"Call {key.call_id!r} had another action before: give each its own call_id.")
        case b"poison":
            return PoisonCallError(
                f"Call {key.call_id!r} for trajectory {key.trajectory_id!r} was in progress on {int(rest[0])} "
                "servers when they died: it is not given to another. Finish the trajectory."
            )
        case b"lost":
            return LostWriteError(
                f"The store no longer has {f'version {key.after!r}' if key.after else 'the state'} of trajectory "
                f"{key.trajectory_id!r}, which a call has seen: it lost writes (a crash, a failover, or state that "
                "expired), and the state that it has is older. Finish the trajectory."
            )
    raise AssertionError(f"begin.lua answered {answer!r}")
