"""The system calls that Python does not offer, by ctypes: Landlock, seccomp, namespaces, mounts, capabilities.

Each raises OSError, named for what was tried. What is called by number has the same on x86_64 and aarch64.
"""

import ctypes
import errno
import os
import struct
from collections.abc import Iterable
from typing import Any

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2

# Rights of Landlock to files. Which of them a kernel knows depends on its ABI version.
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
ALL_FILE_RIGHTS = (1 << 16) - 1
SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNALS = 1, 2

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_MOUNT_SETATTR = 442
_MADV_COLLAPSE = 25
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 22, 38
_SECCOMP_MODE_FILTER = 2
_AT_EMPTY_PATH, _AT_RECURSIVE = 0x1000, 0x8000
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID = 1, 2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int, *4 * [ctypes.c_ulong]]
_libc.capset.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
_syscall_of_three = ctypes.CFUNCTYPE(*4 * [ctypes.c_long], use_errno=True)(("syscall", _libc))
# It keeps the interpreter's lock: no other thread could take it in the child.
_fork = ctypes.PyDLL(None, use_errno=True).fork

_NO_CAPABILITIES = struct.pack("Ii", 0x20080522, 0), bytes(24)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _syscall(what: str, number: int, *arguments: Any) -> int:
    """A call by number; integers are passed in full width, which variadic functions need."""
    widened = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *widened), what)


def _prctl(what: str, option: int, first: int = 0, second: int = 0) -> int:
    return _checked(_libc.prctl(option, first, second, 0, 0), what)


def fork() -> int:
    """As `os.fork`, for a process of a single thread: its child is that thread, and has nothing to mend.

    What Python does after a fork, and `threading`, `logging` and `random` with it, copies two hundred pages. The child
    has the parent's random numbers to come.
    """
    return _checked(_fork(), "fork")


def landlock_abi() -> int:
    """The version of Landlock's interface; 0 where the kernel has none or does not let us use it."""
    try:
        return _syscall("landlock", _LANDLOCK_CREATE, None, 0, 1)
    except OSError:
        return 0


def file_rights(abi: int) -> int:
    """Every right to files that an ABI version knows."""
    bits = {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)
    return (1 << bits) - 1


def landlock_ruleset(abi: int, rules: Iterable[tuple[int, int]], *, tcp: bool, scopes: int) -> int:
    """A descriptor of the rules for a domain.

    `rules` are open folders or files with the rights to what is beneath. `tcp` keeps TCP away. Scopes keep signals and
    abstract sockets inside. What the kernel's ABI does not know is left out.
    """
    rights = file_rights(abi)
    attributes = struct.pack("QQQ", rights, 3 if tcp and abi >= 4 else 0, scopes if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = _syscall("landlock_create_ruleset", _LANDLOCK_CREATE, attributes[:size], size, 0)
    try:
        for descriptor, access in rules:
            rule = struct.pack("<Qi", access & rights, descriptor)
            _syscall("landlock_add_rule", _LANDLOCK_ADD, ruleset, 1, rule, 0)
    except BaseException:
        os.close(ruleset)
        raise
    return ruleset


def landlock_enter(ruleset: int) -> None:
    """Put this process into a new domain, inside the one it is in, for good; its children are born into it."""
    _checked(_syscall_of_three(_LANDLOCK_RESTRICT, ruleset, 0), "landlock_restrict_self")


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def install_filter(program: bytes) -> None:
    """Filter this process's system calls, for good; needs `forbid_new_privileges` first."""
    block = _Program(len(program) // 8, program)
    _prctl("seccomp", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(block))


def forbid_new_privileges() -> None:
    """No program that is started from here on gains rights, setuid or not."""
    _prctl("no_new_privs", _PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Give up every capability; with them go the ambient ones."""
    _checked(_libc.capset(*_NO_CAPABILITIES), "capset")


def unshare(flags: int) -> None:
    """Leave namespaces for new ones; a new pid namespace holds the children to come."""
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def set_namespace(descriptor: int, kind: int) -> None:
    """Enter a namespace."""
    _checked(_libc.setns(ctypes.c_int(descriptor), ctypes.c_int(kind)), "setns")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mount, bind or change how mounts spread."""
    arguments = [os.fsencode(text) for text in (source, target, kind)]
    _checked(_libc.mount(*arguments, ctypes.c_ulong(flags), os.fsencode(options)), f"mount {target}")


def make_read_only(target: str) -> None:
    """A mount and all mounts beneath it; the mount alone in gVisor, whose containers have none beneath."""
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID, 0, 0, 0)
    path = os.fsencode(target)
    try:
        _syscall(f"mount_setattr {target}", _MOUNT_SETATTR, -100, path, _AT_RECURSIVE, attributes, len(attributes))
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        remount_read_only(target)


def remount_read_only(target: str) -> None:
    """A mount, without those beneath it."""
    mount("none", target, "", MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID)


def unmount(target: str) -> None:
    """Take away the mount on top."""
    _checked(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def pivot_root(folder: str) -> None:
    """Make a mount the root and drop what was there."""
    os.chdir(folder)
    _checked(_libc.pivot_root(b".", b"."), "pivot_root")
    unmount(".")
    os.chdir("/")


def collapse(start: int, length: int) -> None:
    """Put memory into huge pages, which a fork copies at a fraction of the cost; only a favour to ask."""
    _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _MADV_COLLAPSE)


def flush_c_streams() -> None:
    """Write out what C libraries have buffered, lest a forked child writes it again."""
    _libc.fflush(None)
