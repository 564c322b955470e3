"""Progress of a run, written by the trainer and read by the command line and the operator."""

import json
from dataclasses import asdict, dataclass, fields

from turnmill.observability import atomic_files
from turnmill.observability.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run at one moment."""

    phase: str
    done: int = 0
    total: int = 0
    success: float | None = None
    reward: float | None = None
    turns_per_second: float | None = None
    seconds_left: float | None = None
    message: str | None = None


def write_progress(folder: RunFolder, progress: Progress) -> None:
    """Replace `progress.json` atomically; where the disk is full, it is left as it is."""
    try:
        atomic_files.write_text(folder.progress, json.dumps(asdict(progress)), durable=False)
    except OSError as error:
        if error.errno not in atomic_files.FULL:
            raise


def read_progress(folder: RunFolder) -> Progress | None:
    """Return the last written progress; None before the first."""
    try:
        record = json.loads(folder.progress.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    known = {field.name for field in fields(Progress)}
    return Progress(**{name: value for name, value in record.items() if name in known})
