"""Supervision of a run's trainer: reports its progress, and raises its failure."""

import logging
import time
from collections.abc import Callable
from typing import Any

from turnmill.core.errors import RunFailedError, TurnmillError, first_line
from turnmill.jobs import AgentTrainingJob
from turnmill.observability.progress import Progress, read_progress
from turnmill.observability.run_folder import RunFolder, Silence
from turnmill.runs.kept_room import KeptRoom

POLL_SECONDS = 0.25

log = logging.getLogger(__name__)
Report = Callable[[Progress], None]


def start_silence(job: AgentTrainingJob) -> Silence:
    """Return the time that a run may take until its first step or validation begins."""
    return Silence(job.spec.training.timeouts.start_seconds, "training.timeouts.startSeconds")


def watch(future: Any, job: AgentTrainingJob, folder: RunFolder, report: Report) -> Any:
    """Wait for a call of the trainer and return its result; report progress, and raise RunFailedError if it stalls."""
    with KeptRoom(folder) as room:
        return _watch(future, job, folder, report, room)


def _watch(future: Any, job: AgentTrainingJob, folder: RunFolder, report: Report, room: KeptRoom) -> Any:
    import ray

    shown: Progress | None = None
    in_step = Silence(job.spec.training.stall_timeout_seconds, "training.stallTimeoutSeconds")
    # By the monotonic clock, which stops while the machine sleeps and is never set.
    beat, beaten_at = folder.last_beat(), time.monotonic()
    while True:
        # Ray waits until a time of day: after a step back of the clock, for as long as the step is.
        ready, _ = ray.wait([future], timeout=0)
        progress = read_progress(folder)
        if progress is not None and progress != shown:
            report(progress)
            shown = progress
        if ready:
            return _result(future, folder)
        if (failure := folder.read_failure()) is not None:
            raise failure
        if (last := folder.last_beat()) != beat:
            beat, beaten_at = last, time.monotonic()
        allowed = folder.allowed_silence() or in_step
        if (silent := time.monotonic() - beaten_at) > allowed.seconds:
            raise RunFailedError(
                f"Nothing progressed for {silent:.0f} s ({allowed.setting} is {allowed.seconds:g}) "
                f"in phase {progress.phase if progress else 'starting'!r}. See {folder.logs}; "
                "`--resume` carries on from the last checkpoint.",
                "stalled",
            )
        room.look()
        time.sleep(POLL_SECONDS)


def folder_failure(folder: RunFolder, problem: str) -> RunFailedError:
    """Return the failure of a run whose folder cannot be written to."""
    return RunFailedError(
        f"The run folder cannot be written to: {problem}: {folder.path}. Mend that; "
        "`--resume` carries on from the last checkpoint.",
        "run_folder",
    )


def _result(future: Any, folder: RunFolder) -> Any:
    import ray

    try:
        return ray.get(future)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, RunFailedError):
            raise cause from None
        if isinstance(cause, TurnmillError):
            raise RunFailedError(str(cause), "settings") from None
        # Every process of a run writes there, and what breaks first has many faces.
        if (problem := folder.write_problem()) is not None:
            raise folder_failure(folder, problem) from error
        log.error("Trainer broke", exc_info=error)
        last_line = str(error).strip().rsplit("\n", 1)[-1]
        raise RunFailedError(f"{last_line} (whole traceback in {folder.logs})", "trainer") from error
    except ray.exceptions.RayError as error:
        log.error("Trainer's process died", exc_info=error)
        raise RunFailedError(
            f"The trainer's process died: {first_line(error)} See {folder.logs}; "
            "`--resume` carries on from the last checkpoint.",
            "trainer_died",
        ) from error
