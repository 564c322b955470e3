"""Files that are written whole or not at all."""

import os
import uuid
from pathlib import Path

TEMPORARY_SUFFIX = ".partial"


def write_bytes(path: Path, content: bytes, *, durable: bool = True) -> None:
    """Replace a file in one move; `durable` also survives a power cut, at the price of a disk flush."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, content: str, *, durable: bool = True) -> None:
    """Replace a text file in one move."""
    write_bytes(path, content.encode(), durable=durable)


def append(path: Path, content: bytes) -> None:
    """Add bytes at the end of a file in one call, so that processes that share the file do not mix their lines."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        written = os.write(descriptor, content)
    finally:
        os.close(descriptor)
    if written != len(content):
        raise OSError(f"{path} took {written} of {len(content)} bytes: the disk is full. Free some space and resume.")


def sweep(folder: Path) -> None:
    """Remove what writers that were killed left half done; only for a folder without a living writer."""
    for leftover in folder.glob(f".*{TEMPORARY_SUFFIX}"):
        leftover.unlink(missing_ok=True)
