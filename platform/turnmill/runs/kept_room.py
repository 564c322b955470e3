"""Room that a run keeps on its disk, so that files of others which fill it do not stop the run."""

import ctypes
import errno
import logging
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from turnmill.observability import atomic_files
from turnmill.observability.run_folder import RunFolder
from turnmill.training import checkpoints

LOGS_BYTES = 64 * 2**20
"""Room for metrics, trajectories and logs, beside that for a checkpoint as large as the newest one."""

LOOKS_PER_SIZE = 20
"""Looks at the disk after which the size of the newest checkpoint is looked up again."""

_BLOCK = 2**20

log = logging.getLogger(__name__)


class KeptRoom:
    """Room for a checkpoint and for logs, which is given up as the disk becomes full, and kept again once it is not.

    It is a file without a name, which ends with this process. It is kept where as much again is free, and where the
    file system can set room aside without writing to it.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._kept = self._checkpoint = self._looks = 0
        self._works = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def look(self) -> None:
        """Keep room, or give it up if others need it: to be called several times a second."""
        if not self._works:
            return
        if self._looks % LOOKS_PER_SIZE == 0:
            self._checkpoint = checkpoints.newest_size(self._folder.checkpoints)
        self._looks += 1
        try:
            self._look()
        except OSError as error:
            if error.errno not in atomic_files.FULL:
                self._works = False
                log.info("No room is kept on the disk", extra={"path": str(self._folder.path), "why": str(error)})

    def _look(self) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix=".room-", dir=self._folder.path, buffering=0)  # noqa: SIM115
        free = shutil.disk_usage(self._folder.path).free
        if self._kept and (free <= self._checkpoint or not self._has_another_block()):
            self._keep(0)
            log.warning("Disk is full, the room that was kept is used", extra={"path": str(self._folder.path)})
            return
        wanted = -(-(self._checkpoint + LOGS_BYTES) // _BLOCK) * _BLOCK
        if self._kept != wanted and free + self._kept >= 2 * wanted:
            self._keep(wanted)

    def _has_another_block(self) -> bool:
        """Return whether a block can be written: what a quota allows shows in no number of free bytes."""
        assert self._file is not None
        try:
            os.pwrite(self._file.fileno(), b"0", self._kept)
        except OSError as error:
            if error.errno not in atomic_files.FULL:
                raise
            return False
        finally:
            os.ftruncate(self._file.fileno(), self._kept)
        return True

    def _keep(self, size: int) -> None:
        assert self._file is not None
        self._kept = 0
        os.ftruncate(self._file.fileno(), size)
        if size:
            _allocate(self._file.fileno(), size, self._folder.path)
        self._kept = size


def _allocate(descriptor: int, size: int, path: Path) -> None:
    """Set the blocks of a file aside. Raises OSError.

    `os.posix_fallocate` writes to each block where the file system cannot do it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "fallocate"):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
    if libc.fallocate(descriptor, 0, ctypes.c_int64(0), ctypes.c_int64(size)):
        code = ctypes.get_errno()
        os.ftruncate(descriptor, 0)
        raise OSError(code, os.strerror(code), str(path))
