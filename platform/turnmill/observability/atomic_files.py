"""Atomic writing of files: a file is written completely or not at all."""

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

TEMPORARY_SUFFIX = ".partial"


def write_bytes(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace a file atomically; a `durable` write is flushed to disk and survives a power cut."""
    with replacing(path, durable=durable) as file:
        file.write(content)


@contextmanager
def replacing(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `path` when the block ends; an exception leaves `path` as it was."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    try:
        with temporary.open("xb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, content: str, *, durable: bool = True) -> None:
    """Replace a text file atomically."""
    write_bytes(path, content.encode(), durable=durable)


def append(path: Path, content: bytes) -> None:
    """Append bytes to a file in one write, so that lines of processes that share the file do not mix.

    Linux writes at most 2 GiB at once; what is longer takes several writes.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    remaining = memoryview(content)
    try:
        while remaining:
            written = os.write(descriptor, remaining)
            if not written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            remaining = remaining[written:]
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            error.errno,
            f"The disk is full: only {len(content) - len(remaining)} of {len(content)} bytes were written to {path}. "
            "Free some space and resume",
        ) from error
    finally:
        os.close(descriptor)


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
