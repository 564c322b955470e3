"""A temporary container for tests that may do harm: their files and processes are gone when they end."""

import ctypes
import errno
import fcntl
import os
import platform
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from turnmill.sandboxes import kernel

NOBODY = 65534
_UNSHARE = ("unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child")
_SHARED = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_REFUSED_IN_PODS = {"x86_64": (272, 308, 165, 166, 155, 435, 321, 298), "aarch64": (97, 268, 40, 39, 41, 435, 280, 241)}
"""unshare, setns, mount, umount2, pivot_root, clone3, bpf, perf_event_open."""


def can_contain() -> bool:
    """Return True if this user can create namespaces without a user namespace, as a change of user requires."""
    return os.geteuid() == 0 and subprocess.run(["unshare", "-mpnif", "true"], check=False).returncode == 0


def run_contained(arguments: Sequence[str], *, timeout_seconds: float) -> subprocess.CompletedProcess[str]:
    """Run a Python script in mount, pid, network, IPC and UTS namespaces of its own; it calls `enter` first."""
    path = os.pathsep.join(path for path in sys.path if path)
    return subprocess.run(
        [*_UNSHARE, sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path, "LANG": "C.UTF-8"},
    )


def enter() -> None:
    """Change to a copy-on-write root in memory, with its own /proc, /dev and /tmp."""
    assert os.getpid() == 1, "not the first process of a pid namespace: nothing may do harm here"
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", "/mnt", "tmpfs", 0, "size=2g,mode=755")
    for name in ("upper", "work", "root"):
        Path("/mnt", name).mkdir()
    kernel.mount("overlay", "/mnt/root", "overlay", 0, "lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work")
    root = "/mnt/root"
    _mount_tmp(root)
    kernel.mount("proc", f"{root}/proc", "proc", 0)
    kernel.mount("tmpfs", f"{root}/dev", "tmpfs", 0, "size=1m,mode=755")
    for device in _SHARED:
        Path(root + device).touch()
        kernel.mount(device, root + device, "", kernel.MS_BIND)
    Path(f"{root}/dev/shm").mkdir()
    kernel.mount("tmpfs", f"{root}/dev/shm", "tmpfs", 0, "size=64m,mode=1777")
    kernel.pivot_root(root)
    Path("/root").chmod(0o755)  # Python may be installed there; only the copy is changed.
    _raise_loopback()


def _mount_tmp(root: str) -> None:
    """Mount an empty /tmp; of the old one only the folders with this code stay visible."""
    code = {path.parts[2] for path in map(Path, (__file__, sys.prefix)) if path.is_relative_to("/tmp/")}
    for name in code:
        Path("/mnt/code", name).mkdir(parents=True)
        kernel.mount(f"{root}/tmp/{name}", f"/mnt/code/{name}", "", kernel.MS_BIND)
    kernel.mount("tmpfs", f"{root}/tmp", "tmpfs", 0, "size=2g,mode=1777")
    for name in code:
        Path(f"{root}/tmp", name).mkdir()
        kernel.mount(f"/mnt/code/{name}", f"{root}/tmp/{name}", "", kernel.MS_BIND)


def _raise_loopback() -> None:
    with socket.socket() as control:
        fcntl.ioctl(control, 0x8914, struct.pack("16sh", b"lo", 0x1 | 0x40))


def become_nobody() -> None:
    """Change to the user nobody for good."""
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def become_pod() -> None:
    """Restrict this process as in a `restricted` pod: no capabilities, new privileges or namespaces."""
    kernel.drop_capabilities()
    kernel.forbid_new_privileges()
    machine = platform.machine()
    instructions = [(0x20, 0, 0, 0)]
    for number in _REFUSED_IN_PODS[machine]:
        verdict = errno.ENOSYS if number == 435 else errno.EPERM
        instructions += [(0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | verdict)]
    clone = {"x86_64": 56, "aarch64": 220}[machine]
    instructions += [
        (0x15, 0, 3, clone),
        (0x20, 0, 0, 16),
        (0x45, 0, 1, 0x7E020000),
        (0x06, 0, 0, 0x50000 | errno.EPERM),
    ]
    instructions.append((0x06, 0, 0, 0x7FFF0000))
    kernel.install_filter(b"".join(struct.pack("HBBI", *instruction) for instruction in instructions))


def make_dumpable() -> None:
    """Make this process visible to its own user in /proc, which a change of user prevents."""
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
