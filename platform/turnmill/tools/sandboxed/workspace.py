"""The files of a workspace as parts of a state, one part each, and back; names of parts are plain text."""

import os
import stat
import struct
from collections.abc import Iterator, Mapping
from urllib.parse import quote_from_bytes, unquote_to_bytes

PREFIX = "file/"
_HEADER = struct.Struct("<cHq")
_FILE, _LINK, _FOLDER = b"f", b"l", b"d"


def restore(parts: Mapping[str, bytes], root: str) -> None:
    """Put files, links and empty folders where they were, with their modes and times."""
    mask = os.umask(0o022)
    try:
        for name, part in parts.items():
            if name.startswith(PREFIX):
                path = os.path.join(root, os.fsdecode(unquote_to_bytes(name.removeprefix(PREFIX))))
                os.makedirs(os.path.dirname(path), exist_ok=True)
                _restore(path, part)
    finally:
        os.umask(mask)


def _restore(path: str, part: bytes) -> None:
    kind, mode, modified_ns = _HEADER.unpack_from(part)
    content = part[_HEADER.size :]
    if kind == _LINK:
        os.symlink(os.fsdecode(content), path)
        return
    # Modes are given at creation and times by descriptor: without namespaces, the sandbox refuses both by name.
    os.umask(0)
    if kind == _FOLDER:
        os.mkdir(path, mode)
    flags = os.O_RDONLY | os.O_DIRECTORY if kind == _FOLDER else os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        descriptor = os.open(path, flags, mode)
    except PermissionError:
        return  # A folder that its owner may not read; nothing is in it.
    finally:
        os.umask(0o022)
    try:
        if kind == _FILE:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(content)
        os.utime(descriptor, ns=(modified_ns, modified_ns))
    finally:
        os.close(descriptor)


def snapshot(root: str, *, max_bytes: int, max_files: int) -> tuple[dict[str, bytes], list[str]]:
    """The parts, smallest files first up to the limits, and what is left out, with the reason."""
    parts: dict[str, bytes] = {}
    left_out: list[str] = []
    room = max_bytes
    for path, status in sorted(_walk(root), key=lambda found: (found[1].st_size, found[0])):
        name = path[len(root) + 1 :]
        if len(parts) >= max_files or status.st_size > room:
            left_out.append(
                f"{name} ({status.st_size:,} bytes; a session keeps {max_files:,} files, {max_bytes:,} bytes)"
            )
            continue
        try:
            parts[PREFIX + quote_from_bytes(os.fsencode(name), safe="/ ")] = part = _part(path, status)
        except (OSError, ValueError) as error:
            left_out.append(f"{name} ({error.strerror if isinstance(error, OSError) else error})")
        else:
            room -= len(part)
    return parts, left_out


def _walk(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """Everything but folders that hold something; those come back with what they hold."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        status = entry.stat(follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            yield entry.path, status
            continue
        inside = list(_walk(entry.path))
        if inside:
            yield from inside
        else:
            yield entry.path, status


def _part(path: str, status: os.stat_result) -> bytes:
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        return _HEADER.pack(_LINK, mode, 0) + os.fsencode(os.readlink(path))
    if stat.S_ISDIR(status.st_mode):
        return _HEADER.pack(_FOLDER, mode, status.st_mtime_ns)
    if stat.S_ISREG(status.st_mode):
        with open(path, "rb", buffering=0) as file:
            return _HEADER.pack(_FILE, mode, status.st_mtime_ns) + file.read()
    raise ValueError("neither a file nor a link nor a folder")
