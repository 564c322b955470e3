"""LRU cache of tool state in a server's memory."""

from collections import OrderedDict
from dataclasses import dataclass

from turnmill.trajectories.base import State

ENTRY_BYTES = 1024
"""Estimated overhead of an entry beside the content of its parts."""


@dataclass(frozen=True, slots=True)
class _Entry:
    version: int
    state: State
    num_bytes: int


class StateCache:
    """The last used states, up to a number of bytes. A state is valid only if the store has the same version."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()
        self._tools: dict[str, set[str]] = {}
        self.num_bytes = 0

    def get(self, trajectory_id: str, tool: str) -> tuple[int, State] | None:
        """Return the cached state with its version."""
        entry = self._entries.get((trajectory_id, tool))
        if entry is None:
            return None
        self._entries.move_to_end((trajectory_id, tool))
        return entry.version, entry.state

    def put(self, trajectory_id: str, tool: str, version: int, state: State) -> None:
        """Cache a state, evicting the least recently used ones if needed."""
        self.drop(trajectory_id, tool)
        num_bytes = ENTRY_BYTES + sum(len(name) + len(value) for name, value in state.items())
        if num_bytes > self._max_bytes or not state:
            return
        self._entries[trajectory_id, tool] = _Entry(version, state, num_bytes)
        self._tools.setdefault(trajectory_id, set()).add(tool)
        self.num_bytes += num_bytes
        while self.num_bytes > self._max_bytes:
            self.drop(*next(iter(self._entries)))

    def drop(self, trajectory_id: str, tool: str) -> None:
        """Remove a state."""
        entry = self._entries.pop((trajectory_id, tool), None)
        if entry is not None:
            self.num_bytes -= entry.num_bytes
            tools = self._tools[trajectory_id]
            tools.discard(tool)
            if not tools:
                del self._tools[trajectory_id]

    def forget(self, trajectory_id: str) -> None:
        """Remove the states of all tools of a trajectory."""
        for tool in list(self._tools.get(trajectory_id, ())):
            self.drop(trajectory_id, tool)
