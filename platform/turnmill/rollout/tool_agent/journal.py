"""What an agent loop keeps of its trajectories in flight outside its own process."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from turnmill.core.trajectory import Turn

if TYPE_CHECKING:
    from turnmill.rollout.tool_agent.episode import Episode


class Journal(Protocol):
    """Turns of trajectories, by the name of the trajectory."""

    async def open(self, episode: "Episode") -> Sequence[Turn]:
        """Begin a trajectory, or take it over with the turns that are there."""
        ...

    async def append(self, episode: "Episode", turn: Turn) -> None:
        """Keep a finished turn."""
        ...

    async def finish(self, episode: "Episode", outcome: Mapping[str, Any]) -> None:
        """The trajectory is over."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...


class NoJournal:
    """Keeps nothing: a trajectory in flight is lost with its process."""

    async def open(self, episode: "Episode") -> Sequence[Turn]:
        """Nothing is there."""
        return ()

    async def append(self, episode: "Episode", turn: Turn) -> None:
        """Nothing is kept."""

    async def finish(self, episode: "Episode", outcome: Mapping[str, Any]) -> None:
        """Nothing is kept."""

    async def close(self) -> None:
        """Nothing is open."""
