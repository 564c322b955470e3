"""The barriers that this machine offers around untrusted code."""

from dataclasses import dataclass

from turnmill.sandboxes.syscall_filter import Permissions


@dataclass(frozen=True, slots=True)
class Barriers:
    """The barriers that a fork server found available. Without `confined`, only rlimits and the process group hold."""

    confined: bool = True
    network: bool = False
    landlock_abi: int = 0
    pid_namespace: bool = False
    network_namespace: bool = False
    own_root: bool = False
    """The root consists of read-only mounts; only listed paths exist in it."""

    own_mounts: bool = False
    """Each task sees only its own workspace in that root. Used where Landlock is missing, as in gVisor."""

    own_user: bool = False
    """Each task runs as a user of its own."""

    @property
    def has_landlock(self) -> bool:
        """True if Landlock guards files."""
        return self.confined and self.landlock_abi > 0

    @property
    def has_scoped_signals(self) -> bool:
        """True if Landlock keeps signals inside."""
        return self.confined and self.landlock_abi >= 6

    @property
    def allows_persistent_workers(self) -> bool:
        """True if nothing that a persistent worker starts can reach it.

        The kernel keeps the first process of a pid namespace from signals, the filter from all else, and its folder
        belongs to another user.
        """
        return self.has_landlock and self.pid_namespace and self.own_user and not self.own_mounts

    @property
    def permissions(self) -> Permissions:
        """The system calls that the filter may leave to other barriers."""
        return Permissions(
            network=self.network,
            signals=self.has_scoped_signals or self.pid_namespace or self.own_user,
            attributes=self.own_user,
            truncate=self.landlock_abi >= 3 or self.own_user,
            first_process=not self.own_mounts,
        )
