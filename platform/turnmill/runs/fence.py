"""One attempt at a run at a time: the folder of a run moves from attempt to attempt.

`RUN_DIR` is a link to the folder of the newest attempt, beside it as `RUN_DIR.attempt-N`. A new attempt renames the
folder that is there to its own name, in one move: whatever an older attempt still writes by the paths that it knows
goes nowhere, checkpoints above all.
"""

import contextlib
import re
import shutil
from pathlib import Path

from turnmill.core.errors import RunFailedError

STALE = "stale_attempt"


def claim(run_dir: Path, attempt: int) -> Path:
    """Take the run over, with all that it has, and return its folder; raises RunFailedError for an older attempt."""
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    folder = _folder(run_dir, attempt)
    while True:
        newest = _newest(run_dir)
        if newest >= attempt:
            raise RunFailedError(
                f"Attempt {attempt} at {run_dir} is stale: attempt {newest} has begun, and one alone may write there.",
                STALE,
            )
        # Where another attempt is faster, look again.
        with contextlib.suppress(FileNotFoundError, FileExistsError):
            _folder(run_dir, newest).rename(folder) if newest else folder.mkdir()
            break
    _lead_to_newest(run_dir)
    for older in range(1, attempt):
        # What older attempts have made anew by the paths that they know.
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
    """The number of the newest attempt; 0 where there is none."""
    pattern = re.compile(re.escape(run_dir.name) + r"\.attempt-(\d+)")
    matches = (pattern.fullmatch(path.name) for path in run_dir.parent.iterdir())
    return max((int(match[1]) for match in matches if match), default=0)


def _folder(run_dir: Path, attempt: int) -> Path:
    return run_dir.with_name(f"{run_dir.name}.attempt-{attempt}")
