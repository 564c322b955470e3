"""Starts a program in namespaces of its own, whose network has one address: a port that this machine listens on.

The launcher (`command`) enters the namespaces, makes a root of what the program may read, listens on a port of the new
network, hands the socket to who has started it, and becomes the first process of the new pid namespace. The program is
its child; whatever it leaves behind ends with the namespace. There is no other network: neither services of this
machine, nor other programs, nor names.
"""

import fcntl
import json
import os
import resource
import select
import shutil
import signal
import socket
import struct
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

from turnmill.core import forking
from turnmill.core.errors import SandboxError
from turnmill.sandboxes import kernel
from turnmill.sandboxes.confinement import forgo_privileges, set_limit
from turnmill.sandboxes.namespaces import bind_read_only, map_own_ids
from turnmill.sandboxes.syscall_filter import build_program_filter
from turnmill.sandboxes.visible_paths import CONFIGURATION, DEVICES, SYSTEM

PORT = 9700
"""Port of the program's own network on which the gateway answers."""

START_SECONDS = 60.0
ROOT, WORKSPACE = "root", "workspace"
"""Folders of a program: where its root is put together, and where it works."""

WAYS_OUT = (
    "Programs need user namespaces: on a machine of your own, set user.max_user_namespaces and, where there is one, "
    "kernel.apparmor_restrict_unprivileged_userns=0; in a pod, use gVisor or a seccomp profile that lets `unshare` "
    "through. Or leave out agent.sandbox."
)

_BOOT = "import json,sys; o=json.loads(sys.argv[1]); sys.path[:]=o.pop('import_path'); " \
        "from turnmill.sandboxes.program import main; main(o)"  # fmt: skip
_NAMESPACES = (
    kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWPID
)  # fmt: skip
_READY = b"ready"
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_LIMITS = {resource.RLIMIT_NOFILE: 4096}
_NOT_STARTED = 127


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """A program, and what it may read."""

    command: Sequence[str]
    folder: str
    """Has ROOT and WORKSPACE."""

    paths: Sequence[str]
    """Files and folders that it may read, besides those of the system."""

    processes: int
    """Processes and threads at most."""

    control: int
    """Descriptor of a socket, by which the listening one is handed over."""


def launcher(options: ProgramOptions) -> list[str]:
    """Return the command that starts a program; it inherits `options.control`."""
    data = asdict(options) | {"import_path": [path for path in sys.path if path]}
    return [sys.executable, "-I", "-S", "-c", _BOOT, json.dumps(data)]


def receive_listener(control: socket.socket) -> socket.socket:
    """Return the socket that listens in the program's network. Raises SandboxError if there is none."""
    readable, _, _ = select.select([control], [], [], START_SECONDS)
    if not readable:
        raise SandboxError(f"the program's sandbox was not ready after {START_SECONDS:g} s")
    data, descriptors, _, _ = socket.recv_fds(control, 4096, 1)
    if data != _READY or not descriptors:
        raise SandboxError(f"the program's sandbox could not be made: {data.decode() or 'it died'}. {WAYS_OUT}")
    return socket.socket(fileno=descriptors[0])


def interpreter_paths(executable: str) -> list[str]:
    """Return the folders of a program that is installed outside of the system's, such as a virtual environment."""
    found = shutil.which(executable)
    if found is None:
        return []
    paths = []
    for path in dict.fromkeys((Path(found), Path(os.path.realpath(found)))):
        if path.parts[1:2] and f"/{path.parts[1]}" in SYSTEM:
            continue
        installed = path.parent.parent if path.parent.name == "bin" else path
        paths.append(str(installed))
        with suppress(OSError):
            settings = (installed / "pyvenv.cfg").read_text().splitlines()
            homes = [line.partition("=")[2].strip() for line in settings if line.partition("=")[0].strip() == "home"]
            paths += [os.path.dirname(os.path.realpath(home)) for home in homes]
    return paths


def main(options: dict[str, object]) -> None:
    """Start the program and exit as it does."""
    given = ProgramOptions(**options)  # type: ignore[arg-type]
    control = socket.socket(fileno=given.control)
    try:
        program_filter = build_program_filter()
        _enter_namespaces(control)
        _change_root(given)
        listener = _listen()
        _confine(given, program_filter)
        socket.send_fds(control, [_READY], [listener.fileno()])
    except (OSError, NotImplementedError) as error:
        control.send(str(error).encode())
        sys.exit(1)
    listener.close()
    control.close()
    _run(given)


def _enter_namespaces(control: socket.socket) -> None:
    """Continue as the first process of the new namespaces; the process before exits as this one does."""
    user, group = os.geteuid(), os.getegid()
    kernel.unshare(_NAMESPACES)
    map_own_ids(user, group)
    child = os.fork()
    if child == 0:
        forking.die_with_parent()
        return
    control.close()
    forking.close_descriptors(3)
    os._exit(_exit_code(os.waitpid(child, 0)[1]))


def _change_root(options: ProgramOptions) -> None:
    """Switch to a root in which only the system, the given paths, a few devices and the workspace exist."""
    root, workspace = f"{options.folder}/{ROOT}", f"{options.folder}/{WORKSPACE}"
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=1m")
    for path, size in (("/tmp", "256m"), ("/dev/shm", "64m")):
        os.makedirs(root + path)
        kernel.mount("tmpfs", root + path, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, f"mode=1777,size={size}")
    for path in (*_existing((*SYSTEM, *CONFIGURATION, *options.paths)), *DEVICES):
        bind_read_only(root, path)
    os.makedirs(root + workspace)
    kernel.mount(workspace, root + workspace, "", kernel.MS_BIND)
    os.makedirs(f"{root}/proc", exist_ok=True)
    # Of this pid namespace; containers whose own /proc is covered in part do not allow it.
    with suppress(OSError):
        kernel.mount("proc", f"{root}/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(f"/proc/self/{target}", f"{root}/dev/{name}")
    kernel.pivot_root(root)
    kernel.remount_read_only("/")
    os.chdir(workspace)


def _existing(paths: Iterable[str]) -> list[str]:
    """Return the paths that exist, without those in a folder of them, and with what symbolic links lead to."""
    absolute = [os.path.abspath(path) for path in paths]
    found = sorted({path for path in (*absolute, *map(os.path.realpath, absolute)) if os.path.lexists(path)})
    return [path for path in found if not any(path.startswith(f"{folder}/") for folder in found)]


def _listen() -> socket.socket:
    """Return a socket that listens on the loopback address of this network, which is the only one in it."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    request = struct.pack("16sH14x", b"lo", 0)
    flags = struct.unpack("16sH14x", fcntl.ioctl(listener, _SIOCGIFFLAGS, request))[1]
    fcntl.ioctl(listener, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))
    listener.bind(("127.0.0.1", PORT))
    listener.listen(1024)
    return listener


def _confine(options: ProgramOptions, program_filter: bytes) -> None:
    for kind, bound in {**_LIMITS, resource.RLIMIT_NPROC: options.processes}.items():
        set_limit(kind, bound)
    forgo_privileges()
    kernel.drop_capabilities()
    kernel.install_filter(program_filter)


def _run(options: ProgramOptions) -> NoReturn:
    """Start the program, wait for it and for all that lose their parents, and exit as it does."""
    program = os.fork()
    if program == 0:
        forking.close_descriptors(3)
        # In a group of its own: signals to it are not for this process.
        os.setsid()
        try:
            os.execvp(options.command[0], list(options.command))
        except OSError as error:
            print(
                f"{options.command[0]!r} cannot be started in the sandbox: {error.strerror}. Add its folder to "
                "agent.sandbox.paths.",
                file=sys.stderr,
                flush=True,
            )
            os._exit(_NOT_STARTED)
    forking.close_descriptors(3)
    while True:
        pid, wait_status = os.wait()
        if pid == program:
            # With this process, the kernel ends all others of the namespace.
            os._exit(_exit_code(wait_status))


def _exit_code(wait_status: int) -> int:
    code = os.waitstatus_to_exitcode(wait_status)
    return code if code >= 0 else 128 - code


def require_namespaces() -> None:
    """Raise SandboxError unless this machine lets a program have namespaces of its own."""
    import subprocess
    import tempfile

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with tempfile.TemporaryDirectory() as folder, ours:
        make_folders(folder)
        with theirs:
            options = ProgramOptions(("/bin/true",), folder, (), 64, theirs.fileno())
            process = subprocess.Popen(
                launcher(options), pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, start_new_session=True
            )
        try:
            receive_listener(ours).close()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def make_folders(folder: str) -> str:
    """Make the folders of a program in an empty one; return its workspace."""
    os.mkdir(f"{folder}/{ROOT}")
    os.mkdir(workspace := f"{folder}/{WORKSPACE}")
    return workspace
