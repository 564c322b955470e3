"""Exclusive access of one attempt to a run folder.

`RUN_DIR` is a symbolic link to the folder of the newest attempt, `RUN_DIR.attempt-N` beside it. A new attempt renames
the existing folder to its own name in one operation, so that an older attempt can no longer write to it, in particular
no checkpoints.
"""

import contextlib
import re
import shutil
from pathlib import Path

from turnmill.core.errors import RunFailedError

STALE = "stale_attempt"


def claim(run_dir: Path, attempt: int) -> Path:
    """Take over the run folder with its contents, and return it. Raises RunFailedError for an older attempt."""
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
