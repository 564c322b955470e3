"""Isolation mechanisms that this machine offers for untrusted code."""

from dataclasses import dataclass

from turnmill.sandboxes.base import Limits
from turnmill.sandboxes.syscall_filter import Permissions


@dataclass(frozen=True, slots=True)
class Barriers:
    """Isolation mechanisms that a fork server found available.

    Without `confined` there are only rlimits and the process group.
    """

    confined: bool = True
    network: bool = False
    landlock_abi: int = 0
    pid_namespace: bool = False
    network_namespace: bool = False
    own_root: bool = False
    """The root has only read-only mounts and the listed paths."""

    own_mounts: bool = False
    """Each task sees only its own workspace in that root; used without Landlock, as in gVisor."""

    own_cgroup: bool = False
    """The CPU time of a task is that of a cgroup, which has that of all ended processes as well; in gVisor."""

    own_user: bool = False
    """Each task runs as a user of its own."""

    @property
    def has_landlock(self) -> bool:
        """True if Landlock restricts access to files."""
        return self.confined and self.landlock_abi > 0

    @property
    def has_scoped_signals(self) -> bool:
        """True if Landlock keeps tasks from signalling processes outside."""
        return self.confined and self.landlock_abi >= 6

    @property
    def allows_persistent_workers(self) -> bool:
        """True if programs that a persistent worker starts cannot affect it.

        The kernel keeps signals from the first process of a pid namespace, the filter blocks other system calls, and
        the worker's folder belongs to another user.
        """
        return self.has_landlock and self.pid_namespace and self.own_user and not self.own_mounts

    def memory_bytes(self, limits: Limits) -> int:
        """Return the memory that a task may take; its files are in memory if it has mounts of its own."""
        return limits.memory_bytes + (self.workspace_bytes(limits.file_bytes) if self.own_mounts else 0)

    def workspace_bytes(self, file_bytes: int) -> int:
        """Return the size of a workspace's own file system: above the limit on files, where the monitor ends a task."""
        return int(1.1 * file_bytes)

    @property
    def permissions(self) -> Permissions:
        """System calls that the filter may allow because of other mechanisms."""
        return Permissions(
            network=self.network,
            signals=self.has_scoped_signals or self.pid_namespace or self.own_user,
            attributes=self.own_user,
            truncate=self.landlock_abi >= 3 or self.own_user,
            first_process=not self.own_mounts,
            timers=not self.own_mounts,
            locks=not self.own_mounts,
        )
