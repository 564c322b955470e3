"""Processes of a run, found and terminated by a mark in their environment variables."""

import fcntl
import json
import os
import shutil
import signal
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from turnmill.core.activity import has_ended
from turnmill.core.errors import SettingsError
from turnmill.core.process_mark import PROCESS_MARK
from turnmill.observability import atomic_files

GRACE_SECONDS = 3.0
RECORD = "attempt.json"
# verl's folder of the sockets that `weight_sockets` names.
WEIGHT_SOCKETS = Path("/tmp")
SHARED_MEMORY = Path("/dev/shm")


class Owner:
    """One attempt at a run: its mark, and what must be deleted after it."""

    def __init__(self, record: Path, mark: str) -> None:
        self.record = record
        self.mark = mark
        self.folders: list[str] = []
        self.shared_memory_before = set(_shared_memory())

    def remember_folder(self, path: Path) -> None:
        """Delete a folder outside the run folder at the end of the attempt."""
        self.folders.append(str(path))
        self.save()

    def save(self) -> None:
        """Record what a later attempt has to clean up if this one is killed."""
        record = {"mark": self.mark, "pid": os.getpid(), "folders": self.folders}
        atomic_files.write_text(self.record, json.dumps(record))


@contextmanager
def owned(run_dir: Path) -> Iterator[Owner]:
    """Mark all processes started in the context; at its end, end them and delete their shared memory and folders.

    First clean up after an earlier attempt at the same run that was killed. Raises SettingsError while another process
    trains in the folder.
    """
    record = run_dir / RECORD
    with _locked(run_dir):
        clean_up_after(record)
        owner = Owner(record, uuid.uuid4().hex)
        os.environ[PROCESS_MARK] = owner.mark
        owner.save()
        try:
            yield owner
        finally:
            os.environ.pop(PROCESS_MARK, None)
            _clean_up(owner.mark, owner.folders)
            record.unlink(missing_ok=True)
            for segment in unused_shared_memory() - owner.shared_memory_before:
                with suppress(FileNotFoundError):
                    (SHARED_MEMORY / segment).unlink()


@contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    """Lock a run folder for this process; the lock ends with the process in any case."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = (run_dir / "lock").open("w")
    except OSError as error:
        raise SettingsError(f"{run_dir} cannot be written to: {error.strerror}. Choose another --output.") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingsError(
                f"{run_dir}: another process is training in this folder. Wait for it, or choose another --output."
            ) from None
        yield


def clean_up_after(record: Path) -> None:
    """Terminate processes and delete files of an attempt; do nothing if there was none."""
    try:
        attempt = json.loads(record.read_text())
    except (FileNotFoundError, ValueError):
        return
    _clean_up(attempt["mark"], attempt["folders"])
    record.unlink(missing_ok=True)


def _clean_up(mark: str, folders: list[str]) -> None:
    terminate_marked(mark)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    for socket in WEIGHT_SOCKETS.glob(f"*{mark}*.sock"):
        socket.unlink(missing_ok=True)


def terminate_marked(mark: str, *, but: Callable[[Collection[int]], Collection[int]] = lambda marked: ()) -> None:
    """Terminate all processes with a mark, kill those that remain, and return when all have ended.

    `but` is given those that are found, and returns the ones that are left alone.
    """
    deadline = time.monotonic() + GRACE_SECONDS
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        while ending := (marked := set(find_marked(mark))).difference(but(marked)):
            for pid in ending:
                send_signal(pid, signal_number)
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        deadline = time.monotonic() + GRACE_SECONDS


def find_marked(mark: str) -> list[int]:
    """Return the ids of all processes with a mark, except this one."""
    needle = f"{PROCESS_MARK}={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if needle in environment and not has_ended(int(entry.name)):
            found.append(int(entry.name))
    return found


def tree(pid: int) -> set[int]:
    """Return a process and all that it has started, itself or by others; only itself if it has ended."""
    try:
        return {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    except psutil.NoSuchProcess:
        return {pid}


def title(pid: int) -> bytes:
    """Return a process's command line, or the title that it has given itself; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def recorded_mark(run_dir: Path) -> str:
    """Return the mark of the attempt that runs in a folder, or that was killed there; empty if there is none."""
    try:
        return str(json.loads((run_dir / RECORD).read_text())["mark"])
    except (FileNotFoundError, ValueError):
        return ""


def send_signal(pid: int, signal_number: int) -> None:
    """Send a signal, unless the process has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal_number)


def unused_shared_memory() -> set[str]:
    """Return the names of this user's shared memory and semaphores that no process has mapped or open.

    Files are compared, not names: a process that makes a semaphore maps it under a temporary name.
    """
    found = _shared_memory()
    used = {inode for process in Path("/proc").glob("[0-9]*") for inode in (*_mapped(process), *_open(process))}
    return {name for name, inode in found.items() if inode not in used}


def _mapped(process: Path) -> Iterator[int]:
    """Yield the inodes of shared memory that a process maps; nothing if it has ended or belongs to another user."""
    with suppress(OSError):
        for line in (process / "maps").read_text(errors="replace").splitlines():
            if f" {SHARED_MEMORY}/" in line:
                yield int(line.split()[4])


def _open(process: Path) -> Iterator[int]:
    """Yield the inodes of shared memory that a process has open, such as those that it is about to map."""
    with suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            with suppress(FileNotFoundError):
                if descriptor.readlink().is_relative_to(SHARED_MEMORY):
                    yield descriptor.stat().st_ino


def _shared_memory() -> dict[str, int]:
    """Return this user's shared memory of Python and vLLM, and Python's semaphores, as names and inodes."""
    found = {}
    for kind in ("psm_*", "sem.mp-*", "verl_weights_*"):
        for path in SHARED_MEMORY.glob(kind):
            with suppress(FileNotFoundError):
                status = path.stat()
                if status.st_uid == os.getuid():
                    found[path.name] = status.st_ino
    return found
