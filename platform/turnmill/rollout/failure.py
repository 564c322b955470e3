"""Episodes that infrastructure ended: they are counted, and never learned from."""

from typing import Unpack

import transfer_queue as tq

from turnmill.core.errors import RunFailedError, TurnmillError
from turnmill.core.trajectory import EpisodeFailure
from turnmill.rollout.queue_payload import encode
from turnmill.rollout.verl_types import BatchRow

FAILED = "failed"
"""Value of a key's tag `status` that stands for an episode without rows."""

FAILURE = "failure"
"""Tag of such a key with the encoded `EpisodeFailure`."""


async def put_failure(failure: EpisodeFailure, *, validate: bool, **row: Unpack[BatchRow]) -> None:
    """Put a key without data into the queue: the failure is counted, and no row of it can get into a batch."""
    await tq.async_kv_put(
        key=f"{row['uid']}_{row['session_id']}_0",
        partition_id="val" if validate else "train",
        tag={"status": FAILED, FAILURE: encode(failure), "global_steps": row["global_steps"]},
    )


def as_run_failure(error: BaseException) -> RunFailedError:
    """Return the error that ends the run when an agent loop raised this one."""
    if isinstance(error, RunFailedError):
        return error
    cause = "settings" if isinstance(error, TurnmillError) else "rollout"
    return RunFailedError(f"An agent loop broke: {error!r}. The traceback is in logs/.", cause)
