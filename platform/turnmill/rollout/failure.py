"""Episodes that failed because of infrastructure; they are counted, and not trained on."""

from typing import Unpack

import transfer_queue as tq

from turnmill.core.errors import RunFailedError, TurnmillError, first_line
from turnmill.core.trajectory import EpisodeFailure
from turnmill.rollout.actor_deaths import is_death
from turnmill.rollout.queue_payload import encode
from turnmill.rollout.verl_types import BatchRow

FAILED = "failed"
"""Value of the tag `status` for an episode without rows."""

FAILURE = "failure"
"""Tag with the encoded `EpisodeFailure`."""


async def put_failure(failure: EpisodeFailure, *, validate: bool, **row: Unpack[BatchRow]) -> None:
    """Put a key without a row into the queue, so that the failure is counted."""
    await tq.async_kv_put(
        key=f"{row['uid']}_{row['session_id']}_0",
        partition_id="val" if validate else "train",
        tag={"status": FAILED, FAILURE: encode(failure), "global_steps": row["global_steps"]},
    )


def as_run_failure(error: BaseException) -> RunFailedError:
    """Return the error that ends the run after an agent loop raised `error`."""
    if isinstance(error, RunFailedError):
        return error
    if is_death(error):
        reason = first_line(getattr(error, "cause", error))
        return RunFailedError(
            f"An inference engine, or verl's load balancer before the engines, has died: {reason} "
            "`--resume` continues from the last checkpoint.",
            "engines_died",
        )
    cause = "settings" if isinstance(error, TurnmillError) else "rollout"
    return RunFailedError(f"An agent loop broke: {error!r}. The traceback is in logs/.", cause)
