"""Namespaces of the sandbox, for processes, network and mounts, if the machine allows them."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from turnmill.core import forking
from turnmill.sandboxes import kernel
from turnmill.sandboxes.visible_paths import DEVICES, FULL, ZERO, list_only_paths, readable_paths

CGROUPS = "/cgroups"
"""Folder of the new root with the groups of processes whose CPU time gVisor's kernel adds up."""

_ASIDE = "/aside"
"""Empty folder of the new root, used while a mount is moved."""


@dataclass(frozen=True, slots=True)
class Namespaces:
    """Which namespaces a process is in, and whether it can make groups that count CPU time."""

    pid: bool = False
    network: bool = False
    root: bool = False
    cgroups: bool = False


def enter_namespaces(folder: str, packages: list[str], *, network: bool) -> Namespaces:
    """Enter as many namespaces as the machine allows, and return which ones work."""
    flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    flags |= 0 if network else kernel.CLONE_NEWNET
    user, group = os.geteuid(), os.getegid()
    own_users = False
    try:
        kernel.unshare(flags)
    except OSError:
        try:
            kernel.unshare(flags | kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID)
            map_own_ids(user, group)
        except OSError:
            return Namespaces()
        _continue_in_child()
        own_users = True
    own_root, cgroups = False, False
    with suppress(OSError):
        cgroups = _change_root(folder, packages, own_users=own_users)
        own_root = True
    return Namespaces(_pid_namespaces_work(), not network, own_root, cgroups)


def map_own_ids(user: int, group: int) -> None:
    """Give this process the ids that it had before it entered a user namespace."""
    with suppress(PermissionError):  # gVisor has no such file, and maps a group without it.
        Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _continue_in_child() -> None:
    """Continue as the first process of the new pid namespace, from which further ones can be created and left."""
    child = os.fork()
    if child == 0:
        forking.die_with_parent()
        return
    forking.close_descriptors(3)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)


def _pid_namespaces_work() -> bool:
    try:
        with namespace_for_child():
            child = os.fork()
            if child == 0:
                os._exit(0 if os.getpid() == 1 else 1)
        return os.waitpid(child, 0)[1] == 0
    except OSError:
        return False


class namespace_for_child:  # noqa: N801
    """Make the child forked in this context the first process of a new pid namespace, but not later children."""

    def __enter__(self) -> None:
        self.own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        try:
            kernel.unshare(kernel.CLONE_NEWPID)
        except OSError:
            os.close(self.own)
            raise
        self.parent = os.getpid()

    def __exit__(self, *_: object) -> None:
        if os.getpid() == self.parent:
            kernel.set_namespace(self.own, kernel.CLONE_NEWPID)
        os.close(self.own)


def _change_root(folder: str, packages: list[str], *, own_users: bool) -> bool:
    """Switch to a root in which only the readable paths, a few devices, /proc and the tasks' folder exist.

    Return True if there are groups in CGROUPS, too. In a user namespace of its own, a process may mount them in gVisor;
    in Linux it may not, where they would be those of the machine.
    """
    root = f"{folder}/root"
    os.makedirs(root, exist_ok=True)
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=1m")
    for path in (*readable_paths(packages), *list_only_paths(packages), *DEVICES):
        bind_read_only(root, path)
    os.makedirs(f"{root}/tmp", exist_ok=True)
    os.mkdir(root + _ASIDE)
    cgroups = own_users and _mount_cgroups(root + CGROUPS)
    for path in ("/proc", f"{folder}/tasks"):
        os.makedirs(root + path, exist_ok=True)
        kernel.mount(path, root + path, "", kernel.MS_BIND | kernel.MS_REC)
    os.symlink("/proc/self/fd", f"{root}/dev/fd")
    kernel.pivot_root(root)
    return cgroups


def _mount_cgroups(folder: str) -> bool:
    os.mkdir(folder)
    try:
        kernel.mount("cgroup", folder, "cgroup", kernel.MS_NOSUID | kernel.MS_NODEV, "cpuacct")
        # It belongs to the user of the container, who may not write to it, but may change that.
        os.chmod(folder, 0o700)
        os.mkdir(trial := f"{folder}/trial")
        os.rmdir(trial)
    except OSError:
        return False
    return True


def mount_workspace(workspace: str, num_bytes: int) -> None:
    """Create the folder of a workspace with a file system in memory, of so many bytes, unnamed files included."""
    os.mkdir(workspace, 0o700)
    kernel.mount("tmpfs", workspace, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, f"mode=700,size={num_bytes}")


def hide_other_tasks(workspace: str) -> None:
    """Enter a read-only mount namespace in which other workspaces and /proc do not exist."""
    kernel.unshare(kernel.CLONE_NEWNS)
    tasks = os.path.dirname(workspace)
    kernel.mount(workspace, _ASIDE, "", kernel.MS_BIND)
    hidden = [tasks, "/proc", *([CGROUPS] if os.path.exists(CGROUPS) else [])]
    for path in hidden:
        kernel.mount("tmpfs", path, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=111,size=4k")
    os.mkdir(workspace)
    kernel.mount(_ASIDE, workspace, "", kernel.MS_BIND)
    kernel.unmount(_ASIDE)
    for path in ("/", *hidden):
        kernel.remount_read_only(path)


def bind_read_only(root: str, path: str) -> None:
    """Bind a path into the root, read-only; a symbolic link is created anew, so that it points into the root."""
    target = root + path
    if os.path.lexists(target):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path) and not path.startswith("/etc/"):
        os.symlink(os.readlink(path), target)
        return
    # Both read as zeros, and mappings of /dev/zero are shared memory.
    source = FULL if path == ZERO else os.path.realpath(path)
    if os.path.isdir(source):
        os.mkdir(target)
    else:
        Path(target).touch()
    kernel.mount(source, target, "", kernel.MS_BIND | kernel.MS_REC)
    if path not in DEVICES:
        kernel.make_read_only(target)
