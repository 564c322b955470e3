"""Atomic writing of files: a file is written completely or not at all.

Where `patience` is given, a write waits for so many seconds for room on a full disk before it fails.
"""

import errno
import io
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

TEMPORARY_SUFFIX = ".partial"
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
PATIENCE, LOOK_SECONDS = 60.0, 0.5
"""Seconds for which the writes of a training wait for room, and between two attempts to write."""

ResultT = TypeVar("ResultT")

log = logging.getLogger(__name__)


def write_bytes(path: Path, content: bytes, *, durable: bool = True, patience: float = 0.0) -> None:
    """Replace a file atomically; a `durable` write is flushed to disk and survives a power cut."""
    with replacing(path, durable=durable, patience=patience) as file:
        file.write(content)


@contextmanager
def replacing(path: Path, *, durable: bool = True, patience: float = 0.0) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when the block ends; an exception leaves `path` as it was."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    try:
        opened = with_room(lambda: _PatientFile(temporary, patience), temporary, patience)
        with io.BufferedWriter(opened) as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, content: str, *, durable: bool = True, patience: float = 0.0) -> None:
    """Replace a text file atomically."""
    write_bytes(path, content.encode(), durable=durable, patience=patience)


def append(path: Path, lines: bytes, *, patience: float = 0.0) -> None:
    """Append lines to a file in one write, so that those of processes that share the file do not mix.

    Linux writes at most 2 GiB at once; what is longer takes several writes. After a wait, a line that was written in
    part is written again as a whole, as another process may have added its own to it.
    """
    written = 0

    def write() -> None:
        nonlocal written
        try:
            while written < len(lines):
                written += os.write(descriptor, memoryview(lines)[written:]) or _no_room()
        except OSError:
            if patience:
                written = lines.rfind(b"\n", 0, written) + 1
            raise

    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        with_room(write, path, patience)
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise OSError(
            error.errno,
            f"The disk is full: only {written} of {len(lines)} bytes were written to {path}. "
            "Free some space and resume",
        ) from error
    finally:
        os.close(descriptor)


def with_room(write: Callable[[], ResultT], path: Path, patience: float) -> ResultT:
    """Return what `write` returns; while the disk is full, call it again, for so many seconds at most."""
    deadline = time.monotonic() + patience
    waits = False
    while True:
        try:
            return write()
        except OSError as error:
            if error.errno not in FULL or time.monotonic() >= deadline:
                raise
            if not waits:
                log.warning("Disk is full, waits for room", extra={"path": str(path), "seconds": patience})
            waits = True
        time.sleep(LOOK_SECONDS)


class _PatientFile(io.FileIO):
    """A new file whose writes wait for room, until one of them has waited in vain."""

    def __init__(self, path: Path, patience: float) -> None:
        super().__init__(path, "x")
        self._path = path
        self._patience = patience

    def write(self, content: "ReadableBuffer", /) -> int:
        try:
            return with_room(partial(super().write, content), self._path, self._patience)
        except OSError:
            self._patience = 0.0
            raise


def _no_room() -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def remove_partial_files(folder: Path) -> None:
    """Remove the partial files of killed writers; no process may be writing to the folder."""
    for leftover in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        leftover.unlink(missing_ok=True)


def flush_folder(folder: Path) -> None:
    """Flush all files and folders in a folder to disk, contents before names."""
    for path in sorted((folder, *folder.rglob("*")), key=lambda path: len(path.parts), reverse=True):
        flush(path)


def flush(path: Path) -> None:
    """Flush a file to disk, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
