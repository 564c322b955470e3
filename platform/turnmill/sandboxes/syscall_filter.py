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

_CLONE_NAMESPACES = 0x7E020000
_AF_UNIX, _AF_INET, _AF_INET6, _SOCK_STREAM, _SOCK_DGRAM, _SOCK_TYPE = 1, 2, 10, 1, 2, 0xF
_TIOCSTI, _TIOCLINUX, _FIOSETOWN, _SIOCSPGRP = 0x5412, 0x541C, 0x8901, 0x8902
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15
_PR_SET_SECCOMP = 22
_FALLOC_KEEP_SIZE = 1
_ALL_PROCESSES = 0xFFFFFFFF
"""The pid -1 as the target of a signal."""

_REFUSED = NAMES[: NAMES.index("bind")]
_SOCKET_CALLS = ("bind", "listen", "accept", "accept4", "connect")
_BY_PATH = NAMES[NAMES.index("chmod") : NAMES.index("truncate")]
_SIGNALS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
_ON_OTHER_PROCESSES = ("prlimit64", "sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr")


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


def build_filter(permissions: Permissions, own_pid: int, machine: str | None = None) -> bytes:
    """Build the filter as a classic BPF program, for one process and all its descendants.

    Raises NotImplementedError on architectures whose system call numbers are not known.
    """
    machine = machine or platform.machine()
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
    blocks = [(number_of(name, machine), block) for name, block in _blocks(permissions, own_pid).items()]
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
        (_JUMP_BITS, 0, 1, _CLONE_NAMESPACES),
        _refuse(errno.EPERM),
        _return(_ALLOW),
    ]
    blocks["socketpair"] = [
        _load_argument(0),
        *_require(_AF_UNIX),
        _load_socket_type(),
        _mask_socket_type(),
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
            _mask_socket_type(),
            (_JUMP_EQUAL, 2, 0, _SOCK_STREAM),
            (_JUMP_EQUAL, 1, 0, _SOCK_DGRAM),
            _refuse(errno.EPERM),
            *_allow(),
        ]
    else:
        # A descriptor that is in flight in a socket pair is nobody's, so nothing counts its file.
        blocks |= dict.fromkeys((*_SOCKET_CALLS, "socket", "sendmsg", "sendmmsg"), refuse)
    blocks["ioctl"] = _refuse_values(1, _TIOCSTI, _TIOCLINUX, _FIOSETOWN, _SIOCSPGRP)
    blocks["fcntl"] = _refuse_values(1, _F_SETOWN, _F_SETSIG, _F_SETOWN_EX)
    # Blocks beyond the end of a file are not part of its size; RLIMIT_FSIZE counts them on tmpfs alone.
    blocks["fallocate"] = [
        _load_argument(1),
        (_JUMP_BITS, 0, 1, _FALLOC_KEEP_SIZE),
        _refuse(errno.EOPNOTSUPP),
        *_allow(),
    ]
    blocks["prctl"] = _refuse_values(0, _PR_SET_SECCOMP)
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


def _mask_socket_type() -> Instruction:
    """Remove the flags from a socket's type."""
    return (0x54, 0, 0, _SOCK_TYPE)


def _return(verdict: int) -> Instruction:
    return (_RETURN, 0, 0, verdict)


def _refuse(number: int) -> Instruction:
    return _return(_ERRNO | number)


def _allow() -> list[Instruction]:
    return [_return(_ALLOW)]


def _require(value: int) -> list[Instruction]:
    return [(_JUMP_EQUAL, 1, 0, value), _refuse(errno.EPERM)]


def _refuse_values(argument: int, *values: int) -> list[Instruction]:
    checks: list[Instruction] = []
    for value in values:
        checks += [(_JUMP_EQUAL, 0, 1, value), _refuse(errno.EPERM)]
    return [_load_argument(argument), *checks, *_allow()]
