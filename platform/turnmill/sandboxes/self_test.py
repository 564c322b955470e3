"""Test of all isolation from inside the sandbox, before anything untrusted runs."""

import ctypes
import errno
import json
import os
import random
import resource
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from turnmill.sandboxes.barriers import Barriers
from turnmill.sandboxes.base import Command, Function, Limits, Python, SandboxResult, SandboxTask
from turnmill.sandboxes.syscall_numbers import number_of

SECRET = "TURNMILL_SELF_TEST"
_LIMITS = Limits(seconds=30, cpu_seconds=10, memory_bytes=192 * 1024**2, file_bytes=1024**2)
_SECONDS = 0.1

# System calls with arguments that the kernel itself would refuse with another error than "not permitted".
_CALLS: dict[str, tuple[int, ...]] = {
    "ptrace": (0, 0, 0, 0),
    "process_vm_readv": (0, 0, 0, 0, 0, 0),
    "unshare": (0,),
    "setns": (-1, 0),
    "keyctl": (0, -1, 0),
    "perf_event_open": (0, 0, -1, -1, 0),
    "io_uring_setup": (1, 0),
    "pidfd_getfd": (-1, 0, 0),
    "seccomp": (99, 0, 0),
}
FAILURES = {
    "files": "Landlock does not hold: it takes Linux 5.13 with `landlock` among its security modules",
    "processes": "processes outside can be reached: it takes Linux 6.12, user namespaces, or root in the container",
    "system calls": "the seccomp filter does not hold",
    "sockets": "sockets can be created",
    "descriptors": "file descriptors of the server are open",
    "environment": "the server's environment variables are visible",
    "limits": "rlimits are not in force",
    "capabilities": "capabilities remain",
    "leftovers": "a process outlived its task",
    "time": "a task outlived its time",
    "persistent worker": "what a persistent worker starts can end it, the first process of a pid namespace",
}
"""Messages by isolation mechanism: what does not hold, and what it requires."""


class _Environment(TypedDict):
    """Targets that the probe tries to reach."""

    outside: str
    server: int
    network: bool


async def find_failed_barriers(run: Callable[[SandboxTask], Awaitable[SandboxResult]], barriers: Barriers) -> list[str]:
    """Return messages on the mechanisms that do not hold, with what each requires."""
    import tempfile  # Not needed in the process in which `probe` runs.

    with tempfile.TemporaryDirectory(prefix="turnmill-self-test-") as folder:
        environment: _Environment = {
            "outside": _create_world_writable_file(folder),
            "server": os.getpid(),
            "network": barriers.network,
        }
        function = Function("turnmill.sandboxes.self_test:probe", json.dumps(environment).encode())
        result = await run(SandboxTask(function, limits=replace(_LIMITS, network=barriers.network)))
    if result.value is None:
        return [f"the self-test did not end: {result.stderr.decode(errors='replace')[-500:] or result.limit}"]
    failed: list[str] = json.loads(result.value)
    marker = f"{random.randrange(10**9, 2 * 10**9)}"
    await run(
        SandboxTask(Command(("sh", "-c", f"setsid sleep {marker} & setsid sleep {marker} & exit 0")), limits=_LIMITS)
    )
    if _is_running(marker):
        failed.append("leftovers")
    limits = Limits(seconds=_SECONDS, network=barriers.network)
    if (await run(SandboxTask(Python("while True: pass"), limits=limits))).limit != "time":
        failed.append("time")
    if barriers.allows_persistent_workers:
        function = Function("turnmill.sandboxes.self_test:start_attacker", b"", persistent=True)
        if (await run(SandboxTask(function, limits=replace(_LIMITS, network=barriers.network)))).value != b"held":
            failed.append("persistent worker")
    return [FAILURES[name] for name in failed]


def _create_world_writable_file(folder: str) -> str:
    """Create a file that all users could read and write without isolation."""
    Path(folder).chmod(0o777)
    outside = Path(folder) / "outside"
    outside.write_text("secret")
    outside.chmod(0o666)
    return str(outside)


def _is_running(marker: str) -> bool:
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in entry.read_bytes():
                return True
        except OSError:
            continue
    return False


def probe(argument: bytes) -> bytes:
    """Return the names of the mechanisms that do not hold; runs inside the sandbox."""
    environment: _Environment = json.loads(argument)
    checks: dict[str, Callable[[_Environment], bool]] = {
        "files": _files_hold,
        "processes": _processes_hold,
        "system calls": _system_calls_hold,
        "sockets": _sockets_hold,
        "descriptors": _descriptors_hold,
        "environment": _environment_holds,
        "limits": _limits_hold,
        "capabilities": _capabilities_hold,
    }
    return json.dumps([name for name, holds in checks.items() if not holds(environment)]).encode()


def start_attacker(_: bytes) -> bytes:
    """Start a program that tries to end its parent; runs in a persistent worker."""
    words = ["sh", "-c", "kill -STOP $PPID; kill -INT $PPID; kill -KILL $PPID; kill -KILL -1"]
    os.waitpid(os.posix_spawn("/bin/sh", words, os.environ, setsid=True), 0)
    return b"held"


def _fails(action: Callable[[], object]) -> bool:
    try:
        action()
    except OSError:
        return True
    return False


def _files_hold(environment: _Environment) -> bool:
    outside = Path(environment["outside"])
    forbidden: list[Callable[[], object]] = [
        outside.read_text,
        lambda: outside.write_text("changed"),
        lambda: outside.with_name("more").touch(),
        lambda: os.truncate(outside, 0),
        outside.unlink,
        lambda: Path("hard").hardlink_to(outside),
        lambda: list(Path("..").resolve().parent.iterdir()),
        lambda: list(Path("/proc").iterdir()),
    ]
    Path("link").symlink_to(outside)
    return all(map(_fails, forbidden)) and _fails(Path("link").read_text)


def _processes_hold(environment: _Environment) -> bool:
    # In a pid namespace of its own, it may have the same pid as the server.
    targets = {environment["server"], os.getppid()} - {0, os.getpid()}
    return all(
        _fails(lambda pid=pid: os.kill(pid, 0)) and _fails(Path(f"/proc/{pid}/environ").read_bytes)  # type: ignore[misc]
        for pid in targets
    )


def _system_calls_hold(environment: _Environment) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    for name, arguments in _CALLS.items():
        number = number_of(name)
        result = libc.syscall(ctypes.c_long(number or 0), *map(ctypes.c_long, arguments))
        if result != -1 or ctypes.get_errno() != errno.EPERM:
            return False
    return True


def _sockets_hold(environment: _Environment) -> bool:
    kinds = [(socket.AF_UNIX, socket.SOCK_STREAM), (socket.AF_INET, socket.SOCK_RAW), (socket.AF_NETLINK, 3)]
    if not environment["network"]:
        kinds += [(socket.AF_INET, socket.SOCK_STREAM), (socket.AF_INET6, socket.SOCK_DGRAM)]
    return all(_fails(lambda kind=kind: socket.socket(*kind).close()) for kind in kinds)  # type: ignore[misc]


def _descriptors_hold(environment: _Environment) -> bool:
    return all(_fails(lambda number=number: os.fstat(number)) for number in range(4, 256))  # type: ignore[misc]


def _environment_holds(environment: _Environment) -> bool:
    return SECRET not in os.environ and set(os.environ) <= {
        "HOME",
        "LANG",
        "LOGNAME",
        "PATH",
        "PYTHONDONTWRITEBYTECODE",
        "TMPDIR",
        "USER",
    }


def _limits_hold(environment: _Environment) -> bool:
    expected = {
        resource.RLIMIT_CPU: _LIMITS.cpu_seconds + 1,
        resource.RLIMIT_FSIZE: _LIMITS.file_bytes,
        resource.RLIMIT_CORE: 1,
    }
    try:
        bytearray(2 * _LIMITS.memory_bytes)
    except MemoryError:
        return all(0 <= resource.getrlimit(kind)[1] <= bound for kind, bound in expected.items())
    return False


def _capabilities_hold(environment: _Environment) -> bool:
    """Return True if this process has no capabilities; asks the kernel, as /proc is not visible."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    return libc.capget(header, data) == 0 and not any(data)
