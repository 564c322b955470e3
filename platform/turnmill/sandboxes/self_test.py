"""Tries every barrier from inside before anything untrusted runs: what is missing is found at start, by name."""

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
from typing import Any

from turnmill.sandboxes.base import Command, Function, Limits, Outcome, Python, Task
from turnmill.sandboxes.confinement import Barriers
from turnmill.sandboxes.syscall_filter import number_of

SECRET = "TURNMILL_SELF_TEST"
_LIMITS = Limits(seconds=30, cpu_seconds=10, memory_bytes=192 * 1024**2, file_bytes=1024**2)
_SECONDS = 0.1

# Calls with arguments for which the kernel itself has another answer than "not permitted".
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
WAYS_OUT = {
    "files": "Landlock does not hold: it takes Linux 5.13 with `landlock` among its security modules",
    "processes": "processes outside can be reached: it takes Linux 6.12, user namespaces, or root in the container",
    "system calls": "the seccomp filter does not hold",
    "sockets": "sockets can be made",
    "descriptors": "descriptors of the server's are open",
    "environment": "the server's environment is visible",
    "limits": "rlimits are not in force",
    "capabilities": "capabilities are left",
    "leftovers": "a process outlived its task",
    "time": "a task outlived its time",
    "attendant": "what an attendant starts can end it, although it is the first process of a pid namespace",
}


async def find_missing(run: Callable[[Task], Awaitable[Outcome]], barriers: Barriers) -> list[str]:
    """The barriers that do not hold, with what each takes."""
    import tempfile  # The process in which `probe` runs does without.

    with tempfile.TemporaryDirectory(prefix="turnmill-self-test-") as folder:
        argument = {"outside": _tempting_file(folder), "server": os.getpid(), "network": barriers.network}
        function = Function("turnmill.sandboxes.self_test:probe", json.dumps(argument).encode())
        outcome = await run(Task(function, limits=replace(_LIMITS, network=barriers.network)))
    if outcome.value is None:
        return [f"the self-test did not end: {outcome.stderr.decode(errors='replace')[-500:] or outcome.limit}"]
    missing = json.loads(outcome.value)
    mark = f"{random.randrange(10**9, 2 * 10**9)}"
    await run(Task(Command(("sh", "-c", f"setsid sleep {mark} & setsid sleep {mark} & exit 0")), limits=_LIMITS))
    if _is_running(mark):
        missing.append("leftovers")
    limits = Limits(seconds=_SECONDS, network=barriers.network)
    if (await run(Task(Python("while True: pass"), limits=limits))).limit != "time":
        missing.append("time")
    if barriers.holds_attendants:
        function = Function("turnmill.sandboxes.self_test:attend", b"", attends=True)
        if (await run(Task(function, limits=replace(_LIMITS, network=barriers.network)))).value != b"held":
            missing.append("attendant")
    return [WAYS_OUT[name] for name in missing]


def _tempting_file(folder: str) -> str:
    """One that every user may read and write, were it not for the barriers."""
    Path(folder).chmod(0o777)
    outside = Path(folder) / "outside"
    outside.write_text("secret")
    outside.chmod(0o666)
    return str(outside)


def _is_running(mark: str) -> bool:
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in entry.read_bytes():
                return True
        except OSError:
            continue
    return False


def probe(argument: bytes) -> bytes:
    """Runs inside: the names of the barriers that do not hold."""
    place = json.loads(argument)
    checks: dict[str, Callable[[dict[str, Any]], bool]] = {
        "files": _files_hold,
        "processes": _processes_hold,
        "system calls": _system_calls_hold,
        "sockets": _sockets_hold,
        "descriptors": _descriptors_hold,
        "environment": _environment_holds,
        "limits": _limits_hold,
        "capabilities": _capabilities_hold,
    }
    return json.dumps([name for name, holds in checks.items() if not holds(place)]).encode()


def attend(_: bytes) -> bytes:
    """Runs inside as an attendant, and starts what tries to end it."""
    words = ["sh", "-c", "kill -STOP $PPID; kill -INT $PPID; kill -KILL $PPID; kill -KILL -1"]
    os.waitpid(os.posix_spawn("/bin/sh", words, os.environ, setsid=True), 0)
    return b"held"


def _fails(action: Callable[[], object]) -> bool:
    try:
        action()
    except OSError:
        return True
    return False


def _files_hold(place: dict[str, Any]) -> bool:
    outside = Path(place["outside"])
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


def _processes_hold(place: dict[str, Any]) -> bool:
    # In a pid namespace of its own, the number of the server may be its own.
    targets = {place["server"], os.getppid()} - {0, os.getpid()}
    return all(
        _fails(lambda pid=pid: os.kill(pid, 0)) and _fails(Path(f"/proc/{pid}/environ").read_bytes)  # type: ignore[misc]
        for pid in targets
    )


def _system_calls_hold(place: dict[str, Any]) -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    for name, arguments in _CALLS.items():
        number = number_of(name)
        result = libc.syscall(ctypes.c_long(number or 0), *map(ctypes.c_long, arguments))
        if result != -1 or ctypes.get_errno() != errno.EPERM:
            return False
    return True


def _sockets_hold(place: dict[str, Any]) -> bool:
    kinds = [(socket.AF_UNIX, socket.SOCK_STREAM), (socket.AF_INET, socket.SOCK_RAW), (socket.AF_NETLINK, 3)]
    if not place["network"]:
        kinds += [(socket.AF_INET, socket.SOCK_STREAM), (socket.AF_INET6, socket.SOCK_DGRAM)]
    return all(_fails(lambda kind=kind: socket.socket(*kind).close()) for kind in kinds)  # type: ignore[misc]


def _descriptors_hold(place: dict[str, Any]) -> bool:
    return all(_fails(lambda number=number: os.fstat(number)) for number in range(4, 256))  # type: ignore[misc]


def _environment_holds(place: dict[str, Any]) -> bool:
    return SECRET not in os.environ and set(os.environ) <= {
        "HOME",
        "LANG",
        "LOGNAME",
        "PATH",
        "PYTHONDONTWRITEBYTECODE",
        "TMPDIR",
        "USER",
    }


def _limits_hold(place: dict[str, Any]) -> bool:
    expected = {
        resource.RLIMIT_CPU: _LIMITS.cpu_seconds + 1,
        resource.RLIMIT_FSIZE: _LIMITS.file_bytes,
        resource.RLIMIT_CORE: 0,
    }
    try:
        bytearray(2 * _LIMITS.memory_bytes)
    except MemoryError:
        return all(0 <= resource.getrlimit(kind)[1] <= bound for kind, bound in expected.items())
    return False


def _capabilities_hold(place: dict[str, Any]) -> bool:
    """Asked of the kernel: /proc is out of sight."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    return libc.capget(header, data) == 0 and not any(data)
