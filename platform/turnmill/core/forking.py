"""Functions of all servers that fork: ends of processes, exits of children, and inherited descriptors.

They use Linux system calls and the standard library alone, as the module is imported before anything is forked.
"""

import ctypes
import gc
import os
import signal

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int, *4 * [ctypes.c_ulong]]


def die_with_parent(signal_number: int = signal.SIGKILL) -> None:
    """Have this process get a signal when its parent ends; changing the user undoes it. Raises OSError.

    A parent that has already ended is not noticed: compare `os.getppid()` afterwards.
    """
    _prctl("pdeathsig", _PR_SET_PDEATHSIG, signal_number)


def adopt_orphans() -> None:
    """Make this process the parent of all descendants that lose theirs (a subreaper). Raises OSError."""
    _prctl("child_subreaper", _PR_SET_CHILD_SUBREAPER, 1)


def wake_on_child_exit(descriptor: int) -> None:
    """Write a byte to a pipe whenever a child ends; `descriptor` must not block."""
    signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
    # The signal is ignored unless it has a handler.
    signal.signal(signal.SIGCHLD, lambda *_: None)


def ignore_child_exit() -> None:
    """Undo `wake_on_child_exit`, for example in a fork, where the pipe belongs to the parent."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def close_descriptors(first: int, *, kept: int | None = None) -> None:
    """Close every descriptor from `first` on, open or not, except the one that is kept."""
    if kept is not None:
        os.closerange(first, kept)
        first = kept + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def freeze_memory() -> None:
    """Exclude all existing objects from garbage collection, which would write to pages shared with forks."""
    gc.collect()
    gc.freeze()


def _prctl(name: str, option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
