"""A task's folder on disk, written by untrusted code: nothing here follows a link out of it, or tires of its depth."""

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
_COPIED_AT_ONCE = 1 << 30
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class TooLargeError(Exception):
    """More bytes, entries or folders within folders than a workspace may have."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a walk finds: a name in an open folder, and the path from the top."""

    folder: int
    name: str
    path: str
    status: os.stat_result


def choose(parent: str) -> str:
    """A path that nobody can guess: Landlock does not keep a path from being looked up."""
    return f"{parent}/{os.urandom(16).hex()}"


def create(path: str, user: int | None) -> None:
    """A workspace: a home and a folder for temporary files, which belong to `user`."""
    os.mkdir(path, 0o700)
    for name in (HOME, TEMPORARY):
        os.mkdir(f"{path}/{name}", 0o700)
        if user is not None:
            os.chown(f"{path}/{name}", user, user)
    if user is not None:
        os.chown(path, user, user)


def create_around(path: str, user: int) -> None:
    """The folder of a workspace that is made anew for each task; tasks may write to what is in it alone."""
    os.mkdir(path, 0o710)
    os.chown(path, -1, user)


def fill(path: str, user: int) -> None:
    """What a workspace consists of, in a folder that `create_around` made."""
    for name in (HOME, TEMPORARY):
        os.mkdir(f"{path}/{name}", 0o700)
        os.chown(f"{path}/{name}", user, user)


def empty(path: str) -> None:
    """Delete what a task left, so that it can be filled again."""
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


def measure(path: str) -> int:
    """Bytes on disk; raises TooLargeError where there are too many entries or levels."""
    return sum(entry.status.st_blocks * _BLOCK for entry in _walk(path))


def collect(path: str, max_bytes: int) -> dict[str, bytes] | None:
    """The regular files by relative path; None if they are too many, too deep or too large."""
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


def remove(path: str) -> None:
    """Delete a workspace whose processes have all ended, however deep it is."""
    try:
        for name in (HOME, TEMPORARY, ""):
            os.rmdir(f"{path}/{name}")
    except OSError:
        _remove_all(path)


def remove_root(folder: str) -> None:
    """Delete a sandbox's folder with every workspace in it; others may be at it too."""
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
                number = _empty(top, name, number)
    finally:
        os.close(top)
    os.rmdir(path)


def _empty(top: int, name: str, number: int) -> int:
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
    """Whether it was a file; folders are left."""
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
    """Open to be listed. Tasks see the mode that they gave it, but where its owner may not look into it: there it may
    while this does."""
    place = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        found = stat.S_IMODE(os.fstat(place).st_mode)
        closed = not os.access(".", os.R_OK | os.X_OK, dir_fd=place, effective_ids=True)
        if closed:
            _set_mode(place, found | 0o500)
        try:
            opened = os.open(".", _FOLDER, dir_fd=place)
            try:
                yield opened
            finally:
                os.close(opened)
        finally:
            if closed and stat.S_IMODE(os.fstat(place).st_mode) == found | 0o500:
                _set_mode(place, found)
    finally:
        os.close(place)


def _open_folder(folder: int, name: str) -> int:
    """Open it, and give its owner all rights to it where they were taken away."""
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
    """By a descriptor that names the entry itself: a path could lead elsewhere by now."""
    descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        if not stat.S_ISLNK(os.fstat(descriptor).st_mode):
            _set_mode(descriptor, mode)
    finally:
        os.close(descriptor)


def _set_mode(descriptor: int, mode: int) -> None:
    """Of what a descriptor names that may not be open for reading."""
    os.chmod(f"/proc/self/fd/{descriptor}", mode)
