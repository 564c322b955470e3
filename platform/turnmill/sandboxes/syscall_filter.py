"""The seccomp filter, which denies system calls to untrusted code.

It is a deny list, but numbers above the newest known call fail with ENOSYS. Calls that only read or change files by
path are left to Landlock, except those that Landlock does not cover.
"""

import errno
import platform
import struct
from dataclasses import dataclass
from itertools import chain

from turnmill.sandboxes.syscall_numbers import NAMES, number_of

Instruction = tuple[int, int, int, int]

_LOAD, _JUMP_EQUAL, _JUMP_ABOVE, _JUMP_BITS, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_HIGHEST = 462
"""mseal, the newest system call known to the filter."""

_COMPARED_IN_TURN = 8
"""Numbers that are compared one after the other: fewer make the filter longer, and more make it slower."""

_CLONE_NAMESPACES, _CLONE_FILES, _CLONE_THREAD = 0x7E020000, 0x400, 0x10000
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_HUGETLB = 0x01, 0x20, 0x40000
_AF_UNIX, _AF_INET, _AF_INET6, _SOCK_STREAM, _SOCK_DGRAM, _SOCK_TYPE = 1, 2, 10, 1, 2, 0xF
_TIOCSTI, _TIOCLINUX, _FIOSETOWN, _SIOCSPGRP = 0x5412, 0x541C, 0x8901, 0x8902
_FS_IOC_RESVSP, _FS_IOC_RESVSP64, _FS_IOC_ZERO_RANGE = 0x40305828, 0x4030582A, 0x40305839
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX, _F_SETPIPE_SZ = 8, 10, 15, 1031
_F_SETLK, _F_SETLKW, _F_OFD_SETLK, _F_OFD_SETLKW = 6, 7, 37, 38
_PR_SET_DUMPABLE, _PR_SET_SECCOMP = 4, 22
_RLIMIT_CORE = 4
_FILE_TYPE, _CHARACTERS, _BLOCKS = 0xF000, 0x2000, 0x6000
_CLOSE_RANGE_UNSHARE = 2
_FALLOC_KEEP_SIZE = 1
_ALL_PROCESSES = 0xFFFFFFFF
"""The pid -1 as the target of a signal."""

_REFUSED = NAMES[: NAMES.index("bind")]
_OF_THE_KERNEL = (*NAMES[: NAMES.index("io_setup")], "open_by_handle_at", "fanotify_init", "fanotify_mark")
"""Calls on other processes, mounts, namespaces and the machine, and those with a large attack surface."""

_SOCKET_CALLS = ("bind", "listen", "accept", "accept4", "connect")
_BY_PATH = NAMES[NAMES.index("chmod") : NAMES.index("truncate")]
_PIPE_CALLS = ("splice", "tee", "vmsplice", "sendfile")
_SET_ATTRIBUTES = ("setxattr", "lsetxattr", "fsetxattr")
_SIGNALS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
_ON_OTHER_PROCESSES = ("sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr")


@dataclass(frozen=True, slots=True)
class Permissions:
    """System calls that are allowed depending on the machine and the task."""

    network: bool = False
    signals: bool = True
    """Signals are confined otherwise: by Landlock, a pid namespace or a user of its own."""

    attributes: bool = True
    """Attributes of other files are protected by a user of its own; Landlock does not protect them."""

    truncate: bool = True
    """Landlock restricts truncation."""

    first_process: bool = True
    """The kernel protects the first process of a pid namespace from signals of the others; gVisor does not."""

    timers: bool = True
    """The kernel limits the number of timers; gVisor does not."""

    locks: bool = True
    """The kernel lists locks on ranges of files, so that they count as memory; gVisor does not."""


def build_filter(permissions: Permissions, own_pid: int, machine: str | None = None) -> bytes:
    """Build the filter as a classic BPF program, for one process and all its descendants.

    Raises NotImplementedError on architectures whose system call numbers are not known.
    """
    return _assembled(_blocks(permissions, own_pid), machine or platform.machine())


def build_program_filter(machine: str | None = None) -> bytes:
    """Build the filter for a program in namespaces of its own, which keeps it from the kernel's inner calls.

    Raises NotImplementedError on architectures whose system call numbers are not known.
    """
    refuse = [_refuse(errno.EPERM)]
    blocks = dict.fromkeys(_OF_THE_KERNEL, refuse)
    blocks["clone3"] = [_refuse(errno.ENOSYS)]  # Its flags lie in memory; glibc falls back to clone.
    blocks["clone"] = [
        _load_argument(0),
        (_JUMP_BITS, 0, 1, _CLONE_NAMESPACES),
        _refuse(errno.EPERM),
        *_allow(),
    ]
    return _assembled(blocks, machine or platform.machine())


def _assembled(calls: dict[str, list[Instruction]], machine: str) -> bytes:
    if machine not in _AUDIT:
        raise NotImplementedError(f"system call numbers are known for {', '.join(_AUDIT)}, not for {machine}")
    program: list[Instruction] = [
        _load(_ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, _AUDIT[machine]),
        _return(_KILL),
        _load(_NUMBER),
        (_JUMP_ABOVE, 0, 1, _HIGHEST),
        _refuse(errno.ENOSYS),
    ]
    blocks = [(number_of(name, machine), block) for name, block in calls.items()]
    program += _search(sorted((number, block) for number, block in blocks if number is not None))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def _search(blocks: list[tuple[int, list[Instruction]]]) -> list[Instruction]:
    """Return the instructions that find the block of a call by binary search, and allow calls without one.

    When a filter is installed, the kernel runs it for every system call. Comparing one number after the other, it would
    take nearly twice as long.
    """
    if len(blocks) <= _COMPARED_IN_TURN:
        compared = [((_JUMP_EQUAL, 0, len(block), number), *block) for number, block in blocks]
        return [*chain.from_iterable(compared), _return(_ALLOW)]
    middle = len(blocks) // 2
    lower = _search(blocks[:middle])
    return [(_JUMP_ABOVE, len(lower), 0, blocks[middle - 1][0]), *lower, *_search(blocks[middle:])]


def _blocks(permissions: Permissions, own_pid: int) -> dict[str, list[Instruction]]:
    """Return the instructions for each system call; every block ends in a verdict."""
    refuse = [_refuse(errno.EPERM)]
    blocks = dict.fromkeys(_REFUSED, refuse)
    blocks["clone3"] = [_refuse(errno.ENOSYS)]  # Its flags lie in memory; glibc falls back to clone.
    blocks["clone"] = [
        _load_argument(0),
        (_JUMP_BITS, 3, 0, _CLONE_NAMESPACES),
        # In /proc, a process has the open files of its first thread, and locks are those of the process that took them.
        (_JUMP_BITS, 0, 1, _CLONE_THREAD),
        (_JUMP_BITS, 2, 1, _CLONE_FILES),
        (_JUMP_BITS, 0, 1, _CLONE_FILES),
        _refuse(errno.EPERM),
        *_allow(),
    ]
    blocks["close_range"] = [_load_argument(2), (_JUMP_BITS, 0, 1, _CLOSE_RANGE_UNSHARE), *refuse, *_allow()]
    # Shared memory without a file keeps all its pages while a single one of them is mapped.
    blocks["mmap"] = [
        _load_argument(3),
        (_JUMP_BITS, 0, 1, _MAP_HUGETLB),
        _refuse(errno.ENOMEM),
        (_JUMP_BITS, 0, 2, _MAP_SHARED),
        (_JUMP_BITS, 0, 1, _MAP_ANONYMOUS),
        *refuse,
        *_allow(),
    ]
    # They put whole pages into pipes, up to 2 MiB for each byte. Programs copy by other calls where these fail.
    blocks |= {name: [_refuse(errno.EINVAL)] for name in _PIPE_CALLS}
    # In tmpfs, attributes are neither bytes nor entries.
    blocks |= {name: [_refuse(errno.EOPNOTSUPP)] for name in _SET_ATTRIBUTES}
    # Only the limit of one byte, which it has, keeps the kernel from piping core dumps to a program of the machine. The
    # call seems to succeed, as many programs switch core dumps off.
    blocks["setrlimit"] = [_load_argument(0), (_JUMP_EQUAL, 0, 1, _RLIMIT_CORE), _refuse(0), *_allow()]
    blocks["prlimit64"] = [
        _load_argument(0),
        *_require(0),
        _load_argument(1),
        (_JUMP_EQUAL, 0, 5, _RLIMIT_CORE),
        _load_argument(2),
        (_JUMP_EQUAL, 0, 2, 0),
        _load_argument(2, high=True),
        (_JUMP_EQUAL, 1, 0, 0),
        _refuse(0),
        *_allow(),
    ]
    blocks["socketpair"] = [
        _load_argument(0),
        *_require(_AF_UNIX),
        _load_socket_type(),
        _mask(_SOCK_TYPE),
        *_require(_SOCK_STREAM),
        *_allow(),
    ]
    if permissions.network:
        blocks["socket"] = [
            _load_argument(0),
            (_JUMP_EQUAL, 2, 0, _AF_INET),
            (_JUMP_EQUAL, 1, 0, _AF_INET6),
            _refuse(errno.EPERM),
            _load_socket_type(),
            _mask(_SOCK_TYPE),
            (_JUMP_EQUAL, 2, 0, _SOCK_STREAM),
            (_JUMP_EQUAL, 1, 0, _SOCK_DGRAM),
            _refuse(errno.EPERM),
            *_allow(),
        ]
    else:
        # A descriptor that is in flight in a socket pair is nobody's, so nothing counts its file.
        blocks |= dict.fromkeys((*_SOCKET_CALLS, "socket", "sendmsg", "sendmmsg", "setsockopt"), refuse)
    blocks["ioctl"] = _refuse_values(
        1, _TIOCSTI, _TIOCLINUX, _FIOSETOWN, _SIOCSPGRP, _FS_IOC_RESVSP, _FS_IOC_RESVSP64, _FS_IOC_ZERO_RANGE
    )
    # Locks of open files belong to no process.
    blocks["fcntl"] = _refuse_values(1, _F_SETOWN, _F_SETSIG, _F_SETOWN_EX, _F_SETPIPE_SZ, _F_OFD_SETLK, _F_OFD_SETLKW)
    # Blocks beyond the end of a file are not part of its size; RLIMIT_FSIZE counts them on tmpfs alone.
    blocks["fallocate"] = [
        _load_argument(1),
        (_JUMP_BITS, 0, 1, _FALLOC_KEEP_SIZE),
        _refuse(errno.EOPNOTSUPP),
        *_allow(),
    ]
    # In gVisor, whoever may write to a file system in memory may make devices there.
    blocks["mknod"], blocks["mknodat"] = _refuse_devices(1), _refuse_devices(2)
    blocks["prctl"] = _refuse_values(0, _PR_SET_SECCOMP, _PR_SET_DUMPABLE)  # The latter would hide it from its monitor.
    for name in _ON_OTHER_PROCESSES:
        blocks[name] = [_load_argument(0), *_require(0), *_allow()]
    blocks["setpriority"] = [
        _load_argument(0),
        *_require(0),
        _load_argument(1),
        *_require(0),
        *_allow(),
    ]
    if not permissions.attributes:
        blocks |= dict.fromkeys(_BY_PATH, refuse)
        # Without a path it is about an open file.
        blocks["utimensat"] = [
            _load_argument(1),
            *_require(0),
            _load_argument(1, high=True),
            *_require(0),
            *_allow(),
        ]
    if not permissions.truncate:
        blocks["truncate"] = refuse
    if not permissions.first_process:
        blocks |= dict.fromkeys(_SIGNALS, _refuse_values(0, 1, _ALL_PROCESSES))
        blocks["pidfd_open"] = _refuse_values(0, 1)
    if not permissions.timers:
        blocks["timer_create"] = [_refuse(errno.ENOSYS)]  # Programs then use `setitimer`, of which there is one.
    if not permissions.locks:
        # They seem to succeed, as SQLite opens no database without them. `flock` has one lock per open file.
        lock_nothing = [_load_argument(1), (_JUMP_EQUAL, 1, 0, _F_SETLK), (_JUMP_EQUAL, 0, 1, _F_SETLKW), _refuse(0)]
        blocks["fcntl"] = [*lock_nothing, *blocks["fcntl"]]
    if not permissions.signals:
        blocks["pidfd_open"] = blocks["pidfd_send_signal"] = blocks["tkill"] = refuse
        for name in ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"):
            blocks[name] = [_load_argument(0), (_JUMP_EQUAL, 1, 0, own_pid), _refuse(errno.EPERM), *_allow()]
    return blocks


def _load(offset: int) -> Instruction:
    return (_LOAD, 0, 0, offset)


def _load_argument(index: int, *, high: bool = False) -> Instruction:
    return _load(_ARGUMENTS + 8 * index + 4 * high)


def _load_socket_type() -> Instruction:
    return _load_argument(1)


def _mask(bits: int) -> Instruction:
    """Keep only these bits of what was loaded."""
    return (0x54, 0, 0, bits)


def _refuse_devices(mode: int) -> list[Instruction]:
    """Return the instructions for a call that makes files whose mode is this argument."""
    loaded = [_load_argument(mode), _mask(_FILE_TYPE)]
    return [*loaded, (_JUMP_EQUAL, 1, 0, _CHARACTERS), (_JUMP_EQUAL, 0, 1, _BLOCKS), _refuse(errno.EPERM), *_allow()]


def _return(verdict: int) -> Instruction:
    return (_RETURN, 0, 0, verdict)


def _refuse(number: int) -> Instruction:
    return _return(_ERRNO | number)


def _allow() -> list[Instruction]:
    return [_return(_ALLOW)]


def _require(value: int) -> list[Instruction]:
    return [(_JUMP_EQUAL, 1, 0, value), _refuse(errno.EPERM)]


def _refuse_values(argument: int, *values: int) -> list[Instruction]:
    last = len(values) - 1
    checks = [(_JUMP_EQUAL, last - index, int(index == last), value) for index, value in enumerate(values)]
    return [_load_argument(argument), *checks, _refuse(errno.EPERM), *_allow()]
