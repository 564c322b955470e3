"""Conversion of a workspace's files to parts of a state, one part per file, and back."""

import os
import stat
import struct
from collections.abc import Iterator, Mapping
from urllib.parse import quote_from_bytes, unquote_to_bytes

PREFIX = "file/"
_HEADER = struct.Struct("<cHq")
_FILE, _LINK, _FOLDER = b"f", b"l", b"d"


def restore(parts: Mapping[str, bytes], root: str) -> None:
    """Restore files, links and folders with their modes and times."""
    folders: list[tuple[str, bytes]] = []
    for name, part in parts.items():
        if not name.startswith(PREFIX):
            continue
        path = os.path.join(root, os.fsdecode(unquote_to_bytes(name.removeprefix(PREFIX))))
        if part.startswith(_FOLDER):
            os.makedirs(path, exist_ok=True)
            folders.append((path, part))
        else:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            _restore(path, part)
    # After their contents, whose restoration needs rights to them and changes their times.
    for path, part in sorted(folders, reverse=True):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _set_attributes(descriptor, part)
        finally:
            os.close(descriptor)


def _restore(path: str, part: bytes) -> None:
    content = part[_HEADER.size :]
    if part.startswith(_LINK):
        os.symlink(os.fsdecode(content), path)
        return
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        _set_attributes(file.fileno(), part)


def _set_attributes(descriptor: int, part: bytes) -> None:
    """Set mode and time by descriptor, as the sandbox without namespaces does not allow it by path."""
    _, mode, modified_ns = _HEADER.unpack_from(part)
    os.fchmod(descriptor, mode)
    os.utime(descriptor, ns=(modified_ns, modified_ns))


def snapshot(root: str, *, max_bytes: int, max_files: int) -> tuple[dict[str, bytes], list[str]]:
    """Return the parts up to the limits, smallest files first and folders last, and the omitted files with reasons.

    A folder that contains a kept file is restored in any case; without room for its part, with another mode and time.
    """
    parts: dict[str, bytes] = {}
    left_out: list[str] = []
    filled: set[str] = set()
    room = max_bytes
    for path, status in sorted(_walk(root, left_out, len(root) + 1), key=_order):
        name = path[len(root) + 1 :]
        size = _size(status)
        if len(parts) >= max_files or size > room:
            if name in filled:
                continue
            left_out.append(f"{name} ({size:,} bytes; a session keeps {max_files:,} files, {max_bytes:,} bytes)")
            continue
        try:
            parts[PREFIX + quote_from_bytes(os.fsencode(name), safe="/ ")] = part = _part(path, status)
        except (OSError, ValueError) as error:
            left_out.append(f"{name} ({error.strerror if isinstance(error, OSError) else error})")
        else:
            room -= len(part)
            filled.update(_folders_of(name))
    return parts, left_out


def _folders_of(name: str) -> Iterator[str]:
    while name := os.path.dirname(name):
        yield name


def _order(found: tuple[str, os.stat_result]) -> tuple[bool, int, str]:
    path, status = found
    return stat.S_ISDIR(status.st_mode), _size(status), path


def _size(status: os.stat_result) -> int:
    """Return the bytes that a part contains; 0 for folders, which have only attributes."""
    return 0 if stat.S_ISDIR(status.st_mode) else status.st_size


def _walk(folder: str, left_out: list[str], skip: int) -> Iterator[tuple[str, os.stat_result]]:
    """Yield everything in a folder; folders that cannot be read are added to `left_out`, with the reason."""
    try:
        try:
            found = _list(folder)
        except PermissionError:
            os.chmod(folder, 0o700)  # For good: its mode is known, and the folder ends with the session's process.
            found = _list(folder)
    except OSError as error:
        left_out.append(f"what is in {folder[skip:] or '~'} ({error.strerror})")
        return
    for path, status in found:
        yield path, status
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(path, left_out, skip)


def _list(folder: str) -> list[tuple[str, os.stat_result]]:
    with os.scandir(folder) as entries:
        return [(entry.path, entry.stat(follow_symlinks=False)) for entry in entries]


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
