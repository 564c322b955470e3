"""Trajectories that infrastructure ended: counted, and never learned from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import transfer_queue as tq

from turnmill.core.errors import RunFailedError, TurnmillError

FAILED = "failed"
"""Status, in its tag, of the key that stands for a trajectory without rows."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A trajectory that infrastructure ended: nothing of it is learned from."""

    name: str
    cause: str
    message: str
    num_turns: int
    seconds: Mapping[str, float]
    """What it spent its time on."""


async def put_failure(
    failure: Failure, *, validate: bool, uid: str, session_id: int, global_steps: int, **_: Any
) -> None:
    """A key without data: what failed is counted, and no row of it can get into a batch."""
    await tq.async_kv_put(
        key=f"{uid}_{session_id}_0",
        partition_id="val" if validate else "train",
        tag={
            "status": FAILED,
            "cause": failure.cause,
            "message": failure.message,
            "seconds": dict(failure.seconds),
            "global_steps": global_steps,
        },
    )


def as_run_failure(error: BaseException) -> RunFailedError:
    """What an agent loop that broke means for the run."""
    if isinstance(error, RunFailedError):
        return error
    cause = "settings" if isinstance(error, TurnmillError) else "rollout"
    return RunFailedError(f"An agent loop broke: {error!r}. The traceback is in logs/.", cause)
