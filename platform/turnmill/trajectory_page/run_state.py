"""State of a run, read from its folder while other processes write to it."""

from dataclasses import asdict, dataclass

from pydantic import TypeAdapter

from turnmill.observability.progress import Progress, read_progress
from turnmill.observability.run_folder import RunFolder

STILL_SECONDS = 120.0
"""Seconds without progress after which a run's state is `still`."""

_PROGRESS = TypeAdapter(Progress)


@dataclass(frozen=True, slots=True)
class RunState:
    """State of a run."""

    name: str
    """`going on`, `done`, `failed`, `still` or `unknown`."""

    text: str

    progress: Progress | None = None
    """What the run last reported."""


def read_state(folder: RunFolder) -> RunState:
    """Return the state of a run; `unknown` while one of its files cannot be read."""
    try:
        return _read(folder)
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        # Half of a file, or what another program has written in its place.
        return RunState("unknown", f"state cannot be read: {error}")


def _read(folder: RunFolder) -> RunState:
    progress, still = _checked(read_progress(folder)), folder.seconds_since_progress()
    if failure := folder.read_failure():
        return RunState("failed", f"failed: {failure}", progress)
    where = f"{progress.phase} {progress.done}/{progress.total}" if progress else "starting"
    if _has_ended(folder) and progress and progress.phase == "training" and progress.done >= progress.total:
        return RunState("done", f"done, {where}", progress)
    if folder.last_beat() is None or still > STILL_SECONDS:
        return RunState("still", f"{where}, no progress for {still / 60:.0f} min", progress)
    return RunState("going on", where, progress)


def _checked(progress: Progress | None) -> Progress | None:
    """Return the progress if its values are of their types. Raises ValueError."""
    return None if progress is None else _PROGRESS.validate_python(asdict(progress))


def _has_ended(folder: RunFolder) -> bool:
    """Return True if the last attempt has ended."""
    return [mark["event"] for mark in folder.read_marks()][-1:] == ["ended"]
