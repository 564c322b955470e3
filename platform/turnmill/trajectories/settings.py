"""Settings of the trajectory store: size limits, leases and expiry."""

from dataclasses import dataclass

from turnmill.core.errors import SettingsError

MIB = 1024**2

_POSITIVE = (
    "lease_seconds",
    "max_call_seconds",
    "expiry_seconds",
    "finished_seconds",
    "max_trajectory_bytes",
    "max_connections",
)


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Limits for the trajectories of one run; all servers of a run must have the same."""

    lease_seconds: float = 1.5
    """Seconds until the claim of a dead server expires; a living server renews its claims."""

    max_call_seconds: float = 3600.0
    """Seconds for which a claim is renewed at most."""

    expiry_seconds: float = 24 * 3600.0
    """Seconds for which an unused trajectory is kept."""

    finished_seconds: float = 300.0
    """Seconds for which results of a finished trajectory are kept, for late repeats of calls."""

    max_trajectory_bytes: int = 64 * MIB
    """Maximum size of state and recorded results of a trajectory; beyond it StoreFullError is raised."""

    cache_bytes: int = 64 * MIB
    """Size of a server's in-memory cache of state; 0 disables it."""

    max_connections: int = 32
    """Maximum number of connections of one process; further operations wait for one."""

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise SettingsError(f"{name} ({getattr(self, name)}) must be greater than 0.")
        if self.cache_bytes < 0:
            raise SettingsError(f"cache_bytes ({self.cache_bytes}) must be 0 or greater: 0 disables the cache.")
