"""System calls that Python does not offer, by ctypes: Landlock, seccomp, namespaces, mounts, capabilities.

Each raises OSError with the name of the call. Calls by number have the same number on x86_64 and aarch64.
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
    """Make a system call by number; integers are passed in full width, as variadic functions require."""
    widened = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number), *widened), what)


def _prctl(what: str, option: int, first: int = 0, second: int = 0) -> int:
    return _checked(_libc.prctl(option, first, second, 0, 0), what)


def fork() -> int:
    """Fork a process that has a single thread, without the work of `os.fork` in the child.

    The hooks that Python, `threading`, `logging` and `random` run after a fork would copy two hundred pages. The
    child's random generators have the same state as the parent's.
    """
    return _checked(_fork(), "fork")


def landlock_abi() -> int:
    """Return the version of Landlock's ABI; 0 if the kernel has none or does not allow it."""
    try:
        return _syscall("landlock", _LANDLOCK_CREATE, None, 0, 1)
    except OSError:
        return 0


def file_rights(abi: int) -> int:
    """Return all rights to files in an ABI version."""
    bits = {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)
    return (1 << bits) - 1


def landlock_ruleset(abi: int, rules: Iterable[tuple[int, int]], *, tcp: bool, scopes: int) -> int:
    """Return the descriptor of a Landlock ruleset.

    `rules` are open folders or files with the rights to everything below them. `tcp` blocks TCP, and scopes block
    signals and abstract sockets to processes outside. Restrictions that the kernel's ABI does not know are left out.
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
    """Put this process permanently into a new Landlock domain within its present one; children inherit it."""
    _checked(_syscall_of_three(_LANDLOCK_RESTRICT, ruleset, 0), "landlock_restrict_self")


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def install_filter(program: bytes) -> None:
    """Install a seccomp filter, which cannot be removed; call `forbid_new_privileges` first."""
    block = _Program(len(program) // 8, program)
    _prctl("seccomp", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(block))


def forbid_new_privileges() -> None:
    """Keep this process and programs that it starts from gaining privileges, as by setuid."""
    _prctl("no_new_privs", _PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Drop all capabilities, including ambient ones."""
    _checked(_libc.capset(*_NO_CAPABILITIES), "capset")


def unshare(flags: int) -> None:
    """Enter new namespaces; a new pid namespace applies to later children."""
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def set_namespace(descriptor: int, kind: int) -> None:
    """Enter an existing namespace."""
    _checked(_libc.setns(ctypes.c_int(descriptor), ctypes.c_int(kind)), "setns")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mount a file system, bind a path, or change the propagation of a mount."""
    arguments = [os.fsencode(text) for text in (source, target, kind)]
    _checked(_libc.mount(*arguments, ctypes.c_ulong(flags), os.fsencode(options)), f"mount {target}")


def make_read_only(target: str) -> None:
    """Make a mount and all mounts below it read-only; in gVisor, whose containers have none below, only the mount."""
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID, 0, 0, 0)
    path = os.fsencode(target)
    try:
        _syscall(f"mount_setattr {target}", _MOUNT_SETATTR, -100, path, _AT_RECURSIVE, attributes, len(attributes))
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        remount_read_only(target)


def remount_read_only(target: str) -> None:
    """Make a mount read-only, without those below it."""
    mount("none", target, "", MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID)


def unmount(target: str) -> None:
    """Remove the topmost mount."""
    _checked(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def pivot_root(folder: str) -> None:
    """Make a mount the root and remove the old root."""
    os.chdir(folder)
    _checked(_libc.pivot_root(b".", b"."), "pivot_root")
    unmount(".")
    os.chdir("/")


def collapse(start: int, length: int) -> None:
    """Ask the kernel to use huge pages for memory, as a fork copies them much faster."""
    _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), _MADV_COLLAPSE)


def flush_c_streams() -> None:
    """Flush the buffers of C libraries, which a forked child would otherwise write again."""
    _libc.fflush(None)
