"""Confinement of the sandbox's processes."""

import os
import resource
import sys
import sysconfig
from contextlib import suppress
from pathlib import Path

from turnmill.core import forking
from turnmill.sandboxes import kernel
from turnmill.sandboxes.barriers import Barriers
from turnmill.sandboxes.base import Limits
from turnmill.sandboxes.landlock_rules import Rules, build_ruleset
from turnmill.sandboxes.namespaces import hide_other_tasks
from turnmill.sandboxes.syscall_filter import build_filter

FIRST_USER, NUM_USERS = 61184, 4336
"""The range of user ids that systemd reserves for dynamic users."""

OPEN_FILES = 256
_SAME_FOR_ALL = {
    # With 0, the kernel would still pipe core dumps to a program, if the machine has one for them.
    resource.RLIMIT_CORE: 1,
    resource.RLIMIT_MEMLOCK: 64 * 1024,
    resource.RLIMIT_MSGQUEUE: 0,
    resource.RLIMIT_SIGPENDING: 1024,
}


def change_user(user: int) -> None:
    """Switch irrevocably to an unprivileged user."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def can_change_user() -> bool:
    """Return True if tasks can have users of their own, who can read the standard library and be watched from here.

    Root without the capability SYS_PTRACE does not see the open files and mappings of another user's processes.
    """
    if os.geteuid() != 0:
        return False
    reading, writing = os.pipe()
    waiting, release = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(release)
        try:
            change_user(FIRST_USER)
            os.listdir(sysconfig.get_path("stdlib"))
            os.write(writing, b"!")
            os.read(waiting, 1)
            os._exit(0)
        except BaseException:
            os._exit(1)
    for descriptor in (writing, waiting):
        os.close(descriptor)
    can = False
    with suppress(OSError):
        can = os.read(reading, 1) == b"!" and bool(os.listdir(f"/proc/{child}/fd"))
    for descriptor in (reading, release):
        os.close(descriptor)
    os.waitpid(child, 0)
    return can


def prepare_filter(barriers: Barriers) -> bytes | None:
    """Build the system call filter if it is the same for all tasks; None if each task needs its own."""
    return build_filter(barriers.permissions, 0) if barriers.permissions.signals else None


def forgo_privileges() -> None:
    """Set the limits that are the same for all, and give up what programs could gain by setuid."""
    with suppress(OSError):  # The first to be killed when the machine runs out of memory.
        Path("/proc/self/oom_score_adj").write_text("1000")
    for kind, bound in _SAME_FOR_ALL.items():
        with suppress(ValueError):  # gVisor does not let all of them be set.
            set_limit(kind, bound)
    kernel.forbid_new_privileges()


def confine_supervisor(barriers: Barriers, rules: Rules) -> None:
    """Confine a supervisor as far as its tasks inherit it; it keeps its user, and the rights to watch and end tasks."""
    forgo_privileges()
    if barriers.has_landlock:
        ruleset = build_ruleset(barriers, rules)
        kernel.landlock_enter(ruleset)
        os.close(ruleset)


def confine(barriers: Barriers, ruleset: int | None, prepared: bytes | None, workspace: str, user: int | None) -> None:
    """Confine this child of a supervisor as far as possible before its task is known."""
    if user is not None:
        change_user(user)
    if barriers.own_mounts:
        hide_other_tasks(workspace)
    if barriers.confined:
        kernel.drop_capabilities()
    forking.die_with_parent()
    if ruleset is not None:
        kernel.landlock_enter(ruleset)
    if barriers.confined:
        kernel.install_filter(prepared or build_filter(barriers.permissions, os.getpid()))


def apply_limits(limits: Limits, *, base_bytes: int, own_user: bool, cpu: bool = True) -> None:
    """Set rlimits, which apply to each process; the supervisor watches the sums over all processes.

    `base_bytes` is the address space of the interpreter itself. The number of processes is limited only for a user of
    the task's own: the kernel counts processes by user over all containers of a machine, and a user shared with other
    containers, such as Ray's pods, could be kept from forking by their processes.
    """
    bounds = {
        resource.RLIMIT_AS: limits.memory_bytes + base_bytes,
        resource.RLIMIT_FSIZE: limits.file_bytes,
        resource.RLIMIT_NOFILE: OPEN_FILES,
    }
    if own_user:
        bounds[resource.RLIMIT_NPROC] = limits.processes
    for kind, bound in bounds.items():
        set_limit(kind, bound)
    if cpu:
        # The signal comes first; who ignores it is killed a second later.
        set_limit(resource.RLIMIT_CPU, limits.cpu_seconds, limits.cpu_seconds + 1)


def set_limit(kind: int, soft: int, hard: int | None = None) -> None:
    """Set an rlimit, by default a hard one, but never above the hard limit of the process."""
    hard = soft if hard is None else hard
    _, ceiling = resource.getrlimit(kind)
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(kind, (soft, hard))


def build_environment(home: str, temporary: str) -> dict[str, str]:
    """Return the environment variables of a task, none of which come from the server."""
    python = f"{sys.base_prefix}/bin"
    path = f"{python}:/usr/local/bin:/usr/bin:/bin"
    environment = {"HOME": home, "LANG": "C.UTF-8", "PATH": path, "TMPDIR": temporary}
    return {**environment, "PYTHONDONTWRITEBYTECODE": "1", "USER": "user", "LOGNAME": "user"}
