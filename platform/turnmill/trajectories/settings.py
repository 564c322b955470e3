"""How much the trajectory store keeps, and for how long."""

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
    """Limits of one run's trajectories; every server of a run has the same."""

    lease_seconds: float = 1.5
    """So long a claim lasts beyond the death of its server; a living server renews its claims by itself."""

    max_call_seconds: float = 3600.0
    """A claim is renewed for so long at most, whatever became of its call."""

    expiry_seconds: float = 24 * 3600.0
    """A trajectory that nobody touches for so long is forgotten."""

    finished_seconds: float = 300.0
    """So long the results of a finished trajectory's calls stay, for calls that are repeated late."""

    max_trajectory_bytes: int = 64 * MIB
    """Of the state and the recorded results of one trajectory; a larger one is refused with StoreFullError."""

    cache_bytes: int = 64 * MIB
    """State that a server keeps in memory beside the store, to read it once less; 0 keeps none."""

    max_connections: int = 32
    """Of one process to the store; further operations wait for one of them."""

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise SettingsError(f"{name} ({getattr(self, name)}) must be greater than 0.")
        if self.cache_bytes < 0:
            raise SettingsError(f"cache_bytes ({self.cache_bytes}) must be 0 or greater: 0 keeps no state in memory.")
