"""Workspaces: folders of tasks, written by untrusted code.

No function follows a link out of a workspace, and folders may be nested to any depth.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

TASKS, ROOT = "tasks", "root"
HOME, TEMPORARY = "home", "tmp"
MAX_ENTRIES = 20_000
MAX_DEPTH = 64
_BLOCK = 512
_ENTRY_BYTES = 1024
"""What an entry takes besides its blocks; in tmpfs it is memory."""

_COPIED_AT_ONCE = 1 << 30
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class TooLargeError(Exception):
    """A workspace has too many entries or levels of folders."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """Folder in which the tasks of a supervisor run, one after the other, and their user."""

    folder: str
    user: int | None
    """The user id of the tasks; None if they run as the server's user."""

    @property
    def home(self) -> str:
        """Home and working directory of a task."""
        return f"{self.folder}/{HOME}"

    @property
    def temporary(self) -> str:
        """Folder for TMPDIR."""
        return f"{self.folder}/{TEMPORARY}"


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of an open folder, with its path from the workspace."""

    folder: int
    name: str
    path: str
    status: os.stat_result


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Disk space of a workspace."""

    bytes: int
    has_names: bool
    """True if the task has created files or folders, whose names this process has read."""


def choose_path(parent: str) -> str:
    """Return an unguessable path, as Landlock does not hide whether a path exists."""
    return f"{parent}/{os.urandom(16).hex()}"


def create(path: str, user: int | None) -> None:
    """Create a workspace: a home and a folder for temporary files, owned by `user`."""
    os.makedirs(path, 0o700, exist_ok=True)
    for name in (HOME, TEMPORARY):
        os.mkdir(f"{path}/{name}", 0o700)
        if user is not None:
            os.chown(f"{path}/{name}", user, user)
    if user is not None:
        os.chown(path, user, user)


def create_reusable(path: str, user: int) -> None:
    """Create the folder of a workspace for several tasks, in which they cannot write; see `create_folders`."""
    os.mkdir(path, 0o710)
    os.chown(path, -1, user)


def create_folders(path: str, user: int) -> None:
    """Create home and temporary folder in a folder of `create_reusable`."""
    for name in (HOME, TEMPORARY):
        os.mkdir(f"{path}/{name}", 0o700)
        os.chown(f"{path}/{name}", user, user)


def clear(path: str) -> None:
    """Delete home and temporary folder with everything in them."""
    for name in (HOME, TEMPORARY):
        try:
            os.rmdir(f"{path}/{name}")
        except OSError:
            _remove_all(f"{path}/{name}")


def copy_in(path: str, name: str, source: int, user: int | None) -> None:
    """Copy an open file into the home of a workspace in which nothing runs yet."""
    target = os.open(f"{path}/{HOME}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        while os.sendfile(target, source, None, _COPIED_AT_ONCE):
            pass
        if user is not None:
            os.fchown(target, user, user)
    finally:
        os.close(target)


def measure_disk_usage(path: str) -> DiskUsage:
    """Return what a workspace takes; raises TooLargeError if there are too many entries or levels."""
    total, has_names = 0, False
    linked: set[tuple[int, int]] = set()
    for entry in _walk(path):
        file = entry.status.st_dev, entry.status.st_ino
        total += _ENTRY_BYTES
        if file not in linked:
            total += entry.status.st_blocks * _BLOCK
        if entry.status.st_nlink > 1 and stat.S_ISREG(entry.status.st_mode):
            linked.add(file)
        has_names = has_names or entry.path not in (HOME, TEMPORARY)
    return DiskUsage(total, has_names)


def collect(path: str, max_bytes: int) -> dict[str, bytes] | None:
    """Return the regular files by relative path; None if they are too many, too deep or too large."""
    files: dict[str, bytes] = {}
    room = max_bytes
    try:
        for entry in _walk(path):
            if not stat.S_ISREG(entry.status.st_mode):
                continue
            room -= entry.status.st_size
            if room < 0:
                return None
            files[entry.path] = _read(entry)
    except TooLargeError:
        return None
    return files


def remove(path: str) -> bool:
    """Delete a workspace of any depth, all of whose processes have ended; return True if it was empty."""
    try:
        for name in (HOME, TEMPORARY, ""):
            os.rmdir(f"{path}/{name}")
    except OSError:
        _remove_all(path)
        return False
    return True


def remove_root(folder: str) -> None:
    """Delete a sandbox's folder with all workspaces; other processes may delete it at the same time."""
    with suppress(FileNotFoundError):
        for path in os.listdir(f"{folder}/{TASKS}"):
            with suppress(FileNotFoundError):
                remove(f"{folder}/{TASKS}/{path}")
    for path in (TASKS, ROOT, ""):
        with suppress(OSError):
            os.rmdir(f"{folder}/{path}")


def _remove_all(path: str) -> None:
    try:
        top = os.open(path, _FOLDER)
    except FileNotFoundError:
        return
    try:
        os.fchmod(top, 0o700)
        number = 0
        while names := os.listdir(top):
            for name in names:
                # Folders come up to the top as they are found, so that depth costs neither names nor descriptors.
                number = _remove_entry(top, name, number)
    finally:
        os.close(top)
    os.rmdir(path)


def _remove_entry(top: int, name: str, number: int) -> int:
    if not _remove_file(top, name):
        folder = _open_folder(top, name)
        try:
            for inner in os.listdir(folder):
                if not _remove_file(folder, inner):
                    number += 1
                    os.close(_open_folder(folder, inner))  # A folder moves only if it can be written to.
                    os.rename(inner, f"{number}.{os.urandom(4).hex()}", src_dir_fd=folder, dst_dir_fd=top)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=top)
    return number


def _remove_file(folder: int, name: str) -> bool:
    """Delete an entry unless it is a folder; return False for folders."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        return False
    except FileNotFoundError:
        pass
    return True


def _walk(path: str) -> Iterator[Entry]:
    with _opened(None, path) as top:
        for count, entry in enumerate(_walk_folder(top, "", 0)):
            if count >= MAX_ENTRIES:
                raise TooLargeError
            yield entry


def _walk_folder(folder: int, prefix: str, depth: int) -> Iterator[Entry]:
    if depth > MAX_DEPTH:
        raise TooLargeError
    with os.scandir(folder) as entries:
        for found in entries:
            try:
                entry = Entry(folder, found.name, prefix + found.name, found.stat(follow_symlinks=False))
            except FileNotFoundError:
                continue
            yield entry
            if stat.S_ISDIR(entry.status.st_mode):
                with suppress(FileNotFoundError, NotADirectoryError), _opened(folder, entry.name) as inner:
                    yield from _walk_folder(inner, entry.path + "/", depth + 1)


@contextmanager
def _opened(folder: int | None, name: str) -> Iterator[int]:
    """Open a folder to list it; if its mode forbids that to its owner, allow it while the context lasts."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        found = stat.S_IMODE(os.fstat(handle).st_mode)
        closed = not os.access(".", os.R_OK | os.X_OK, dir_fd=handle, effective_ids=True)
        if closed:
            _set_mode(handle, found | 0o500)
        try:
            opened = os.open(".", _FOLDER, dir_fd=handle)
            try:
                yield opened
            finally:
                os.close(opened)
        finally:
            if closed and stat.S_IMODE(os.fstat(handle).st_mode) == found | 0o500:
                _set_mode(handle, found)
    finally:
        os.close(handle)


def _open_folder(folder: int, name: str) -> int:
    """Open a folder, restoring its owner's rights if they were removed."""
    try:
        opened = os.open(name, _FOLDER, dir_fd=folder)
    except PermissionError:
        _restore_rights(folder, name, 0o700)
        return os.open(name, _FOLDER, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotADirectoryError(error.errno, error.strerror, name) from None
        raise
    status = os.fstat(opened)
    if status.st_mode & 0o700 != 0o700:
        os.fchmod(opened, 0o700)
    return opened


def _read(entry: Entry) -> bytes:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(entry.name, flags, dir_fd=entry.folder)
    except PermissionError:
        _restore_rights(entry.folder, entry.name, 0o600)
        descriptor = os.open(entry.name, flags, dir_fd=entry.folder)
    with open(descriptor, "rb") as file:
        return file.read(entry.status.st_size)


def _restore_rights(folder: int, name: str, mode: int) -> None:
    """Set the mode through a descriptor of the entry itself, as its path may meanwhile lead elsewhere."""
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        if not stat.S_ISLNK(os.fstat(descriptor).st_mode):
            _set_mode(descriptor, mode)
    finally:
        os.close(descriptor)


def _set_mode(descriptor: int, mode: int) -> None:
    """Set the mode of a descriptor's file, which need not be open for reading."""
    os.chmod(f"/proc/self/fd/{descriptor}", mode)
