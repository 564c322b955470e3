"""Resources that the processes of a task use together, as /proc shows them.

What a process could hold without being seen here is refused by the system call filter: shared memory without a file,
descriptors in flight, descriptors of a single thread, pages in pipes, locks that belong to no process.
"""

import os
import re
import stat
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

_PAGE = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_BLOCK = 512
_MAX_MAP_BYTES = 4 << 20
"""Bytes of a list of mappings that are read."""

_MAX_MAPPINGS = 1 << 16
"""The kernel's own limit on the mappings of a process."""

# Memory of the kernel, at most. The filter keeps buffers at the sizes that they have by default.
_PIPE_BYTES = 64 << 10
_SOCKET_BYTES = 256 << 10
_OTHER_DESCRIPTOR_BYTES = 64 << 10
"""Of what is neither a file, a pipe nor a socket: an epoll descriptor of all others takes the most."""

_LOCK_BYTES = 64 << 10
"""Far more than a lock takes, so that the list of all locks stays short enough to be read at every check."""

_LOCK = re.compile(rb"^\d+: *(?:-> *)?\w+ +\w+ +\w+ +(\d+) ", re.MULTILINE)
"""A line of /proc/locks, for the process that holds the lock or waits for it."""

_THREAD_BYTES = 32 << 10
_MAPPING_BYTES = 256
_ADDRESSES_PER_TABLE = 512
"""Bytes of addresses for each byte of page tables, in densely used memory."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process at one moment, with all its threads."""

    pid: int
    parent: int
    thread: int
    """A thread that has not ended: /proc shows neither memory nor files of one that has, the first one included."""

    threads: int
    cpu_seconds: float
    """CPU time, with that of children that it has waited for."""

    faults: int
    """Page faults of its own."""

    children_faults: int
    """Page faults of children that it has waited for."""


@dataclass(frozen=True, slots=True)
class Held:
    """What processes hold besides the pages of their own memory."""

    kernel_bytes: int
    deleted_bytes: int
    """Disk space of files that are deleted, but open or mapped."""

    has_names: bool
    """True if this process has read names of files in the task's folder."""

    hidden: bool
    """True if a process has made itself invisible, as by executing a file that it may not read."""


def processes_of(pids: Iterable[int]) -> dict[int, Process]:
    """Return the processes that have not been waited for, in the order of `pids`."""
    found = {}
    for pid in pids:
        with suppress(OSError, IndexError):
            fields = read_file(f"/proc/{pid}/stat").rsplit(b")", 1)[1].split()
            threads = int(fields[17])
            found[pid] = Process(
                pid=pid,
                parent=int(fields[1]),
                thread=_living_thread(pid) if fields[0] == b"Z" and threads > 1 else pid,
                threads=threads,
                cpu_seconds=sum(map(int, fields[11:15])) / _TICKS,
                faults=int(fields[7]),
                children_faults=int(fields[8]),
            )
    return found


def _living_thread(pid: int) -> int:
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(OSError):
            if read_file(f"/proc/{pid}/task/{thread}/stat").rsplit(b")", 1)[1].split()[0] not in b"ZX":
                return int(thread)
    return pid


def measure_memory(processes: Iterable[Process]) -> int:
    """Return the memory in bytes without shared files; what forks share counts for each, so it is never too small."""
    pages, tables, threads = 0, 0, 0
    for process in processes:
        threads += process.threads
        with suppress(OSError):
            size, resident, shared = map(int, read_file(f"/proc/{process.thread}/statm").split()[:3])
            pages += resident - shared
            tables += size * _PAGE // _ADDRESSES_PER_TABLE
            if _HAS_SWAP:
                pages += _swapped_pages(process.thread)
    return pages * _PAGE + tables + threads * _THREAD_BYTES


def _swapped_pages(thread: int) -> int:
    found = read_file(f"/proc/{thread}/status").partition(b"VmSwap:")[2].split()
    return int(found[0]) * 1024 // _PAGE if found else 0


def measure_saved_by_sharing(processes: Iterable[Process]) -> int:
    """Return how much `measure_memory` is too large, because it counts shared pages for each sharer; it is slow."""
    saved = 0
    for process in processes:
        with suppress(OSError):
            sizes: Counter[bytes] = Counter()
            for line in read_file(f"/proc/{process.thread}/smaps_rollup").splitlines()[1:]:
                name, value, *_ = line.split()
                sizes[name] = int(value) * 1024
            saved += sizes[b"Anonymous:"] - sizes[b"Pss_Anon:"]
            if _HAS_SWAP:
                saved += sizes[b"Swap:"] - sizes[b"SwapPss:"]
    return saved


def measure_held(
    processes: Collection[Process], folder: str, *, max_file_bytes: int, with_mappings: bool = True
) -> Held:
    """Return what processes hold of kernel memory and of deleted files; `folder` is the task's.

    A deleted file that is only mapped counts as large as a file may be, unless this process may look at it. To read
    mappings takes most of the time.
    """
    kernel_bytes = 0
    pipes: set[int] = set()
    sockets: set[int] = set()
    deleted: dict[int, int] = {}
    has_names, hidden = False, False
    for process in processes:
        try:
            statuses = list(_open_files(process.thread))
        except PermissionError:
            # Nor does a process show them that is just ending, but it has no memory any more.
            hidden = hidden or _address_pages(process.thread) > 0
            continue
        for status in statuses:
            match stat.S_IFMT(status.st_mode):
                case stat.S_IFIFO:
                    pipes.add(status.st_ino)
                case stat.S_IFSOCK:
                    sockets.add(status.st_ino)
                case 0:
                    kernel_bytes += _OTHER_DESCRIPTOR_BYTES
            if status.st_nlink == 0:
                deleted[status.st_ino] = status.st_blocks * _BLOCK
    for process in processes if with_mappings else ():
        mappings = _mappings(process.thread)
        kernel_bytes += (mappings.count(b"\n") if len(mappings) < _MAX_MAP_BYTES else _MAX_MAPPINGS) * _MAPPING_BYTES
        if folder.encode() in mappings:
            has_names = True
            for inode, size in _deleted_mappings(process.thread, mappings, folder.encode(), max_file_bytes):
                deleted.setdefault(inode, size)
    kernel_bytes += len(pipes) * _PIPE_BYTES + len(sockets) * _SOCKET_BYTES
    kernel_bytes += count_locks({process.pid for process in processes}) * _LOCK_BYTES
    return Held(kernel_bytes, sum(deleted.values()), has_names, hidden)


def count_locks(pids: Container[int]) -> int:
    """Return how many locks on files and their ranges processes hold or wait for; 0 where the kernel does not say.

    The ranges are numbers that tasks choose, so they do not stay in the memory of this process.
    """
    lines = bytearray(64 << 10)
    count = 0
    with suppress(OSError), open("/proc/locks", "rb", buffering=0) as file:
        # The kernel returns whole lines.
        while size := file.readinto(lines):
            count += sum(int(lock[1]) in pids for lock in _LOCK.finditer(lines, 0, size))
            lines[:size] = bytes(size)
    return count


def _open_files(thread: int) -> Iterator[os.stat_result]:
    """Yield the status of each open file; raises PermissionError if they cannot be seen."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for entry in os.scandir(f"/proc/{thread}/fd"):
            with suppress(OSError):
                yield entry.stat()


def _address_pages(thread: int) -> int:
    with suppress(OSError):
        return int(read_file(f"/proc/{thread}/statm").split()[0])
    return 0


def _mappings(thread: int) -> bytes:
    with suppress(OSError), open(f"/proc/{thread}/maps", "rb") as file:
        return file.read(_MAX_MAP_BYTES)
    return b""


def _deleted_mappings(thread: int, mappings: bytes, folder: bytes, unknown: int) -> Iterator[tuple[int, int]]:
    """Return inodes and sizes of the deleted files among the mappings."""
    for line in mappings.splitlines():
        if line.endswith(b" (deleted)") and folder in line:
            addresses, _, _, _, inode, _ = line.split(maxsplit=5)
            start, _, end = addresses.decode().partition("-")
            try:
                status = os.stat(f"/proc/{thread}/map_files/{int(start, 16):x}-{int(end, 16):x}")
                yield int(inode), status.st_blocks * _BLOCK
            except OSError:  # It takes a capability.
                yield int(inode), unknown


def read_file(path: str) -> bytes:
    """Return the contents of a file of the kernel's, in one read."""
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _has_swap() -> bool:
    try:
        return read_file("/proc/swaps").count(b"\n") > 1
    except OSError:
        return False


_HAS_SWAP = _has_swap()
