"""The seccomp filter: which system calls untrusted code may not make.

A list of refusals, closed to the future: a number above those known when it was written does not exist (ENOSYS).
What only looks at or changes files by path is Landlock's matter, except where Landlock does not look.
"""

import errno
import platform
import struct
from dataclasses import dataclass

Instruction = tuple[int, int, int, int]

_LOAD, _JUMP_EQUAL, _JUMP_ABOVE, _JUMP_BITS, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_HIGHEST = 462
"""mseal; what is above came later."""

_CLONE_NAMESPACES = 0x7E020000
_AF_UNIX, _AF_INET, _AF_INET6, _SOCK_STREAM, _SOCK_DGRAM, _SOCK_TYPE = 1, 2, 10, 1, 2, 0xF
_TIOCSTI, _TIOCLINUX, _FIOSETOWN, _SIOCSPGRP = 0x5412, 0x541C, 0x8901, 0x8902
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15
_PR_SET_SECCOMP = 22
_EVERYTHING = 0xFFFFFFFF
"""-1 as the pid of a signal."""


# Numbers on x86_64 and aarch64; None where an architecture has no such call.
_NUMBERS: dict[str, tuple[int | None, int | None]] = {
    # Other processes, their memory and their settings.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "ioprio_set": (251, 30),
    # Mounts, roots and namespaces.
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "statmount": (457, 457),
    "listmount": (458, 458),
    "unshare": (272, 97),
    "setns": (308, 268),
    # The machine.
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "personality": (135, 92),
    "nfsservctl": (180, 42),
    "uselib": (134, None),
    "sysfs": (139, None),
    "_sysctl": (156, None),
    "lookup_dcookie": (212, 18),
    # Wide entrances to the kernel.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "seccomp": (317, 277),
    # Files that no folder holds, and watching those of others.
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    # Memory and messages that outlive processes.
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "semctl": (66, 191),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgrcv": (70, 188),
    "msgctl": (71, 187),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    # Sockets but for those that `socket` grants.
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    "connect": (42, 203),
    # Attributes of files by path.
    "chmod": (90, None),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "truncate": (76, 45),
    # Judged by their arguments.
    "clone": (56, 220),
    "clone3": (435, 435),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "ioctl": (16, 29),
    "fcntl": (72, 25),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "setpriority": (141, 140),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "utimensat": (280, 88),
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
}
_NAMES = tuple(_NUMBERS)
_REFUSED = _NAMES[: _NAMES.index("bind")]
_SERVING = ("bind", "listen", "accept", "accept4", "connect")
_BY_PATH = _NAMES[_NAMES.index("chmod") : _NAMES.index("truncate")]
_SIGNALS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
_OF_OTHERS = ("prlimit64", "sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr")


@dataclass(frozen=True, slots=True)
class Permissions:
    """What depends on the machine and on the task."""

    network: bool = False
    signals: bool = True
    """Something else keeps signals inside: Landlock, a pid namespace or a user of its own."""

    attributes: bool = True
    """A user of its own keeps the attributes of other files safe; Landlock does not."""

    truncate: bool = True
    """Landlock guards truncation."""

    first_process: bool = True
    """The kernel keeps the first process of a pid namespace from signals of the others; gVisor does not."""


def number_of(name: str, machine: str | None = None) -> int | None:
    """A system call's number on this machine, or on another."""
    return _NUMBERS[name][(machine or platform.machine()) == "aarch64"]


def build_filter(permissions: Permissions, own_pid: int, machine: str | None = None) -> bytes:
    """The filter as a program of classic BPF, for one process with all its descendants."""
    machine = machine or platform.machine()
    if machine not in _AUDIT:
        raise NotImplementedError(f"system calls of {machine} are not known; known are {', '.join(_AUDIT)}")
    program: list[Instruction] = [
        _load(_ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, _AUDIT[machine]),
        _give(_KILL),
        _load(_NUMBER),
        (_JUMP_ABOVE, 0, 1, _HIGHEST),
        _refuse(errno.ENOSYS),
    ]
    for name, block in _blocks(permissions, own_pid).items():
        number = number_of(name, machine)
        if number is not None:
            program += [(_JUMP_EQUAL, 0, len(block), number), *block]
    program.append(_give(_ALLOW))
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


def _blocks(permissions: Permissions, own_pid: int) -> dict[str, list[Instruction]]:
    """What follows each system call's number; every block ends in a verdict."""
    refuse = [_refuse(errno.EPERM)]
    blocks = dict.fromkeys(_REFUSED, refuse)
    blocks["clone3"] = [_refuse(errno.ENOSYS)]  # Its flags lie in memory; glibc falls back to clone.
    blocks["clone"] = [
        _load_argument(0),
        (_JUMP_BITS, 0, 1, _CLONE_NAMESPACES),
        _refuse(errno.EPERM),
        _give(_ALLOW),
    ]
    blocks["socketpair"] = [
        _load_argument(0),
        *_only(_AF_UNIX),
        _load_type(),
        _type_only(),
        *_only(_SOCK_STREAM),
        *_ok(),
    ]
    if permissions.network:
        blocks["socket"] = [
            _load_argument(0),
            (_JUMP_EQUAL, 2, 0, _AF_INET),
            (_JUMP_EQUAL, 1, 0, _AF_INET6),
            _refuse(errno.EPERM),
            _load_type(),
            _type_only(),
            (_JUMP_EQUAL, 2, 0, _SOCK_STREAM),
            (_JUMP_EQUAL, 1, 0, _SOCK_DGRAM),
            _refuse(errno.EPERM),
            *_ok(),
        ]
    else:
        blocks |= dict.fromkeys((*_SERVING, "socket"), refuse)
    blocks["ioctl"] = _unless(1, _TIOCSTI, _TIOCLINUX, _FIOSETOWN, _SIOCSPGRP)
    blocks["fcntl"] = _unless(1, _F_SETOWN, _F_SETSIG, _F_SETOWN_EX)
    blocks["prctl"] = _unless(0, _PR_SET_SECCOMP)
    for name in _OF_OTHERS:
        blocks[name] = [_load_argument(0), *_only(0), *_ok()]
    blocks["setpriority"] = [_load_argument(0), *_only(0), _load_argument(1), *_only(0), *_ok()]
    if not permissions.attributes:
        blocks |= dict.fromkeys(_BY_PATH, refuse)
        # Without a path it is about an open file.
        blocks["utimensat"] = [_load_argument(1), *_only(0), _load_argument(1, high=True), *_only(0), *_ok()]
    if not permissions.truncate:
        blocks["truncate"] = refuse
    if not permissions.first_process:
        blocks |= dict.fromkeys(_SIGNALS, _unless(0, 1, _EVERYTHING))
        blocks["pidfd_open"] = _unless(0, 1)
    if not permissions.signals:
        blocks["pidfd_open"] = blocks["pidfd_send_signal"] = blocks["tkill"] = refuse
        for name in ("kill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"):
            blocks[name] = [_load_argument(0), (_JUMP_EQUAL, 1, 0, own_pid), _refuse(errno.EPERM), *_ok()]
    return blocks


def _load(offset: int) -> Instruction:
    return (_LOAD, 0, 0, offset)


def _load_argument(index: int, *, high: bool = False) -> Instruction:
    return _load(_ARGUMENTS + 8 * index + 4 * high)


def _load_type() -> Instruction:
    return _load_argument(1)


def _type_only() -> Instruction:
    """A socket's type without its flags."""
    return (0x54, 0, 0, _SOCK_TYPE)


def _give(verdict: int) -> Instruction:
    return (_RETURN, 0, 0, verdict)


def _refuse(number: int) -> Instruction:
    return _give(_ERRNO | number)


def _ok() -> list[Instruction]:
    return [_give(_ALLOW)]


def _only(value: int) -> list[Instruction]:
    return [(_JUMP_EQUAL, 1, 0, value), _refuse(errno.EPERM)]


def _unless(argument: int, *values: int) -> list[Instruction]:
    checks: list[Instruction] = []
    for value in values:
        checks += [(_JUMP_EQUAL, 0, 1, value), _refuse(errno.EPERM)]
    return [_load_argument(argument), *checks, *_ok()]
