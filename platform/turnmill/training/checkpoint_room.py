"""Room for checkpoints: a disk that is full for a while is waited for, one that stays full ends the run."""

import errno
import os
import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path

from turnmill.core.errors import RunFailedError
from turnmill.observability import atomic_files
from turnmill.training import checkpoints


def wait_for_room(root: Path) -> None:
    """Wait until the disk has room for a checkpoint as large as the newest one, for a minute at most.

    Several processes write a checkpoint at a time and wait for one another, so that none of them can wait for room, or
    write its part again.
    """
    with suppress(OSError):
        atomic_files.with_room(partial(_require, root, checkpoints.newest_size(root)), root, atomic_files.PATIENCE)


def _require(root: Path, size: int) -> None:
    if shutil.disk_usage(root).free <= size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def failed_to_write(root: Path, step: int, error: BaseException) -> RunFailedError:
    """Return the error of a run whose checkpoint could not be written."""
    reason = str(error).strip().rsplit("\n", 1)[-1]
    try:
        free = f"{shutil.disk_usage(root).free // 2**20} MiB are free"
    except OSError as failure:
        # The folder is gone if a later attempt has taken the run over.
        free = f"the free space is unknown ({failure.strerror})"
    return RunFailedError(
        f"The checkpoint of step {step} could not be written to {checkpoints.folder_of(root, step)}, where {free}: "
        f"{reason}. Earlier checkpoints are kept: make room for one more, and resume.",
        "checkpoint",
    )
