"""The barriers around untrusted code: which of them this machine offers, and how a process puts itself behind them."""

import importlib.util
import os
import resource
import signal
import stat
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from turnmill.sandboxes import kernel
from turnmill.sandboxes.base import Limits
from turnmill.sandboxes.syscall_filter import Permissions, build_filter

FIRST_USER, NUM_USERS = 61184, 4336
"""The range that systems set aside for users that come and go."""

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
CONFIGURATION = tuple(
    f"/etc/{name}"
    for name in (
        "alternatives",
        "bash.bashrc",
        "ca-certificates",
        "gai.conf",
        "group",
        "host.conf",
        "hosts",
        "inputrc",
        "ld.so.cache",
        "ld.so.conf",
        "ld.so.conf.d",
        "locale.alias",
        "localtime",
        "magic",
        "mime.types",
        "nsswitch.conf",
        "os-release",
        "passwd",
        "pki",
        "profile",
        "protocols",
        "resolv.conf",
        "services",
        "ssl/certs",
        "ssl/openssl.cnf",
        "terminfo",
        "timezone",
    )
)
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
OPEN_FILES = 256
_ASIDE = "/aside"
"""An empty folder of the root of one's own, for a mount on its way."""

LOCKED_BYTES = 64 * 1024

_READ = kernel.EXECUTE | kernel.READ_FILE | kernel.READ_DIR
_DEVICE = kernel.READ_FILE | kernel.WRITE_FILE | kernel.IOCTL_DEV


@dataclass(frozen=True, slots=True)
class Barriers:
    """What a zygote found that it can do. Without `confined`, rlimits and the process group are all there is."""

    confined: bool = True
    network: bool = False
    landlock_abi: int = 0
    pid_namespace: bool = False
    network_namespace: bool = False
    own_root: bool = False
    """A root of read-only mounts in which only what is listed exists."""

    own_mounts: bool = False
    """Where Landlock is missing, as in gVisor: of that root, each task sees its own workspace alone."""

    own_user: bool = False
    """A user of its own for every task."""

    @property
    def has_landlock(self) -> bool:
        """Landlock guards files."""
        return self.confined and self.landlock_abi > 0

    @property
    def scoped_signals(self) -> bool:
        """Landlock keeps signals inside."""
        return self.confined and self.landlock_abi >= 6

    @property
    def holds_attendants(self) -> bool:
        """Nothing that an attendant starts can reach it: the kernel keeps the first process of a pid namespace from
        signals, the filter from all else, and its folder belongs to another user."""
        return self.has_landlock and self.pid_namespace and self.own_user and not self.own_mounts

    @property
    def permissions(self) -> Permissions:
        """What the filter may leave to other barriers."""
        return Permissions(
            network=self.network,
            signals=self.scoped_signals or self.pid_namespace or self.own_user,
            attributes=self.own_user,
            truncate=self.landlock_abi >= 3 or self.own_user,
            first_process=not self.own_mounts,
        )


def readable_paths(packages: Iterable[str]) -> list[str]:
    """What the system, Python and the packages granted to user code need, as far as it exists."""
    python = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), sys.base_prefix, sys.base_exec_prefix]
    paths = [*SYSTEM, *CONFIGURATION, *map(os.path.realpath, python), *_package_paths(packages)]
    return [path for path in dict.fromkeys(paths) if os.path.lexists(path)]


def _package_paths(packages: Iterable[str]) -> list[str]:
    paths = []
    for name in packages:
        spec = importlib.util.find_spec(name)
        if spec is None:
            continue
        for place in spec.submodule_search_locations or ([spec.origin] if spec.origin else []):
            # Wheels put shared libraries beside the package.
            paths += [os.path.realpath(place), os.path.realpath(f"{place}.libs")]
    return paths


def list_only_paths(packages: Iterable[str]) -> list[str]:
    """The folders that hold these packages: an import lists them, and reads nothing else there."""
    return [path for path in dict.fromkeys(map(os.path.dirname, _package_paths(packages))) if os.path.isdir(path)]


def enter_namespaces(folder: str, packages: list[str], *, network: bool) -> tuple[bool, bool, bool]:
    """Leave as many namespaces as the machine allows; says for pid, network and root whether it worked."""
    flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    flags |= 0 if network else kernel.CLONE_NEWNET
    user, group = os.geteuid(), os.getegid()
    try:
        kernel.unshare(flags)
    except OSError:
        try:
            kernel.unshare(flags | kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID)
            with suppress(PermissionError):  # gVisor has no such file, and maps a group without it.
                Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
            Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        except OSError:
            return False, False, False
        _carry_on_as_child()
    own_root = False
    with suppress(OSError):
        _change_root(folder, packages)
        own_root = True
    return _pid_namespaces_work(), not network, own_root


def _carry_on_as_child() -> None:
    """Only from a pid namespace that the user namespace owns can one make more and come back."""
    child = os.fork()
    if child == 0:
        kernel.die_with_parent(signal.SIGKILL)
        return
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
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
    """A child forked inside is the first of a new pid namespace; later ones are not."""

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


def _change_root(folder: str, packages: list[str]) -> None:
    """Move to a root in which only the readable paths, a few devices, /proc and the tasks' folder exist."""
    root = f"{folder}/root"
    os.makedirs(root, exist_ok=True)
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", root, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=1m")
    for path in (*readable_paths(packages), *list_only_paths(packages), *DEVICES):
        _show(root, path)
    os.makedirs(f"{root}/tmp", exist_ok=True)
    os.mkdir(root + _ASIDE)
    for path in ("/proc", f"{folder}/tasks"):
        os.makedirs(root + path, exist_ok=True)
        kernel.mount(path, root + path, "", kernel.MS_BIND | kernel.MS_REC)
    os.symlink("/proc/self/fd", f"{root}/dev/fd")
    kernel.pivot_root(root)


def _hide_other_tasks(workspace: str) -> None:
    """Leave a read-only view in which other workspaces and /proc do not exist."""
    kernel.unshare(kernel.CLONE_NEWNS)
    tasks = os.path.dirname(workspace)
    kernel.mount(workspace, _ASIDE, "", kernel.MS_BIND)
    for path in (tasks, "/proc"):
        kernel.mount("tmpfs", path, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=111,size=4k")
    os.mkdir(workspace)
    kernel.mount(_ASIDE, workspace, "", kernel.MS_BIND)
    kernel.unmount(_ASIDE)
    for path in ("/", tasks, "/proc"):
        kernel.remount_read_only(path)


def _show(root: str, path: str) -> None:
    """Bind a path into the root, read-only; a link is made again, so that it leads to what is there."""
    target = root + path
    if os.path.lexists(target):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path) and not path.startswith("/etc/"):
        os.symlink(os.readlink(path), target)
        return
    source = os.path.realpath(path)
    if os.path.isdir(source):
        os.mkdir(target)
    else:
        Path(target).touch()
    kernel.mount(source, target, "", kernel.MS_BIND | kernel.MS_REC)
    if path not in DEVICES:
        kernel.make_read_only(target)


Rules = list[tuple[int, int]]
"""Landlock's: a descriptor and the rights to what is beneath."""


def open_rules(packages: list[str], tasks: str) -> tuple[Rules, Rules]:
    """What all tasks share, exactly, for the supervisors; and in a few wide rules, for what lies within those."""
    rights = dict.fromkeys(list_only_paths(packages), kernel.READ_DIR)
    rights |= dict.fromkeys(readable_paths(packages), _READ)
    rights |= dict.fromkeys(DEVICES, _DEVICE)
    supervisors = {**rights, tasks: kernel.ALL_FILE_RIGHTS, "/proc": _READ}
    return _open(supervisors), _open(widen(rights, os.path.realpath(tasks)))


def widen(rights: Mapping[str, int], tasks: str) -> dict[str, int]:
    """The same with whole top folders in place of what lies in them, except for those in which the tasks are."""
    wide: dict[str, int] = {}
    for path, access in rights.items():
        top = "/" + path.split("/", 2)[1]
        place = path if tasks.startswith(f"{top}/") else top
        wide[place] = wide.get(place, 0) | access
    return wide


def _open(rights: Mapping[str, int]) -> Rules:
    """By descriptors that are opened once."""
    rules = []
    for path, access in rights.items():
        with suppress(OSError):
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
            rules.append((descriptor, access if is_folder else access & kernel.FILE_RIGHTS))
    return rules


def change_user(user: int) -> None:
    """Become a user without rights, for good."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def users_work() -> bool:
    """Whether a task can have a user of its own who can still read the standard library."""
    if os.geteuid() != 0:
        return False
    child = os.fork()
    if child == 0:
        try:
            change_user(FIRST_USER)
            os.listdir(sysconfig.get_path("stdlib"))
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def prepare_filter(barriers: Barriers) -> bytes | None:
    """The filter, where it is the same for all tasks."""
    return build_filter(barriers.permissions, 0) if barriers.permissions.signals else None


def confine_supervisor(barriers: Barriers, rules: Rules) -> None:
    """Put a supervisor behind what its tasks inherit; it keeps its user, and what it takes to watch and end them."""
    with suppress(OSError):  # The first to go when the machine runs out of memory.
        Path("/proc/self/oom_score_adj").write_text("1000")
    kernel.forbid_new_privileges()
    if barriers.has_landlock:
        ruleset = build_ruleset(barriers, rules)
        kernel.landlock_enter(ruleset)
        os.close(ruleset)


def build_ruleset(barriers: Barriers, rules: Rules, workspace: str | None = None) -> int:
    """A Landlock domain with what the rules allow, and everything in the workspace; its descriptor."""
    scopes = kernel.SCOPE_SIGNALS | kernel.SCOPE_ABSTRACT_SOCKETS
    own = [] if workspace is None else _open({workspace: kernel.ALL_FILE_RIGHTS})
    try:
        return kernel.landlock_ruleset(barriers.landlock_abi, [*rules, *own], tcp=not barriers.network, scopes=scopes)
    finally:
        for descriptor, _ in own:
            os.close(descriptor)


def confine(barriers: Barriers, ruleset: int | None, prepared: bytes | None, workspace: str, user: int | None) -> None:
    """Put this process, a supervisor's child, behind every barrier that does not depend on the task."""
    if user is not None:
        change_user(user)
    if barriers.own_mounts:
        _hide_other_tasks(workspace)
    if barriers.confined:
        kernel.drop_capabilities()
    kernel.die_with_parent(signal.SIGKILL)
    if ruleset is not None:
        kernel.landlock_enter(ruleset)
    if barriers.confined:
        kernel.install_filter(prepared or build_filter(barriers.permissions, os.getpid()))


def apply_limits(limits: Limits, *, base_bytes: int, own_user: bool, cpu: bool = True) -> None:
    """Rlimits hold for each process; what holds for all together is the supervisor's to watch.

    Processes the kernel counts by user, over all containers of a machine: a user who is in others too, as in pods of
    Ray, would be kept from forking by what goes on there.
    """
    bounds = {
        resource.RLIMIT_AS: limits.memory_bytes + base_bytes,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_MEMLOCK: LOCKED_BYTES,
        resource.RLIMIT_CORE: 0,
    }
    if own_user:
        bounds[resource.RLIMIT_NPROC] = limits.processes
    for kind, bound in bounds.items():
        _limit(kind, bound, bound)
    with suppress(ValueError):  # gVisor does not let it be set; the filter refuses such queues in any case.
        _limit(resource.RLIMIT_MSGQUEUE, 0, 0)
    if cpu:
        # The signal comes first; who ignores it is killed a second later.
        _limit(resource.RLIMIT_CPU, limits.cpu_seconds, limits.cpu_seconds + 1)


def _limit(kind: int, soft: int, hard: int) -> None:
    """Never above what the process has."""
    _, ceiling = resource.getrlimit(kind)
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(kind, (soft, hard))


def build_environment(home: str, temporary: str) -> dict[str, str]:
    """What a program finds in its environment: nothing of the server's."""
    python = f"{sys.base_prefix}/bin"
    path = f"{python}:/usr/local/bin:/usr/bin:/bin"
    place = {"HOME": home, "LANG": "C.UTF-8", "PATH": path, "TMPDIR": temporary}
    return {**place, "PYTHONDONTWRITEBYTECODE": "1", "USER": "user", "LOGNAME": "user"}
