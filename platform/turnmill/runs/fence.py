"""Exclusive access of one attempt to a run folder.

`RUN_DIR` is a symbolic link to the folder of the newest attempt, `RUN_DIR.attempt-N` beside it. A new attempt renames
the existing folder to its own name in one operation, so that an older attempt can no longer write to it, in particular
no checkpoints.
"""

import contextlib
import errno
import os
import re
import shutil
import tempfile
from pathlib import Path

from turnmill.core.errors import RunFailedError
from turnmill.observability.atomic_files import FULL

STALE, STORAGE = "stale_attempt", "storage"
CLAIM_VARIABLE = "TURNMILL_RUNS_CLAIM"
"""Environment variable with the name of the claim of run folders, for messages."""

_NOT_WRITABLE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS}) | FULL


def claim(run_dir: Path, attempt: int) -> Path:
    """Take over the run folder with its contents, and return it.

    Raises RunFailedError for an older attempt, and if the storage refuses to be written to.
    """
    try:
        folder = _claim(run_dir, attempt)
        # An attempt of another user may have left a folder that this one can rename, but not write to.
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        if error.errno not in _NOT_WRITABLE:
            raise
        raise RunFailedError(_refusal(run_dir, error), STORAGE) from error


def _refusal(run_dir: Path, error: OSError) -> str:
    volume = next((parent for parent in run_dir.parents if parent.exists()), run_dir.parent)
    claim_name = os.environ.get(CLAIM_VARIABLE)
    where = f"{volume} (claim {claim_name})" if claim_name else str(volume)
    reason = error.strerror or str(error)
    if error.errno in FULL:
        return f"{where} has no room for the run folder: {reason}. Delete run folders there, or enlarge the volume."
    return (
        f"{where} is not writable by user {os.getuid()}, group {os.getgid()}: {reason}. Let that user write to the "
        "folder on the storage, for example by `chown`; what exports or host paths allow, `fsGroup` does not change."
    )


def _claim(run_dir: Path, attempt: int) -> Path:
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    folder = _folder(run_dir, attempt)
    while True:
        newest = _newest(run_dir)
        if newest >= attempt:
            raise RunFailedError(
                f"Attempt {attempt} at {run_dir} is stale: attempt {newest} has begun, and one alone may write there.",
                STALE,
            )
        # If another attempt renames it first, look again.
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            _folder(run_dir, newest).rename(folder) if newest else folder.mkdir()
            break
    _lead_to_newest(run_dir)
    for older in range(1, attempt):
        # Folders that older attempts have created again.
        shutil.rmtree(_folder(run_dir, older), ignore_errors=True)
    return folder


def _lead_to_newest(run_dir: Path) -> None:
    """Point the link to the newest attempt, whichever process does it last."""
    pointed = 0
    while pointed != (newest := _newest(run_dir)):
        fresh = run_dir.with_name(f".{run_dir.name}.link-{newest}")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(_folder(run_dir, newest).name)
        fresh.replace(run_dir)
        pointed = newest


def _newest(run_dir: Path) -> int:
    """Return the number of the newest attempt; 0 if there is none."""
    pattern = re.compile(re.escape(run_dir.name) + r"\.attempt-(\d+)")
    matches = (pattern.fullmatch(path.name) for path in run_dir.parent.iterdir())
    return max((int(match[1]) for match in matches if match), default=0)


def _folder(run_dir: Path, attempt: int) -> Path:
    return run_dir.with_name(f"{run_dir.name}.attempt-{attempt}")
