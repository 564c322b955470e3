"""What a trajectory needs of a store that it shares with other processes."""

from collections.abc import Sequence
from typing import Protocol

from turnmill.core.trajectory import Turn
from turnmill.trajectories.request_claims import RequestClaim


class Shared(Protocol):
    """A trajectory in a store, whose requests other processes may answer, too."""

    async def take_over(self, known: Sequence[Turn]) -> Sequence[Turn]:
        """Take the journal from another process; return all turns, of which some are known."""

    async def claim(self, digest: str, known: Sequence[Turn]) -> tuple[RequestClaim, Sequence[Turn]]:
        """Claim a request by its digest; return the claim and all turns, of which some are known."""

    def release(self, claim: RequestClaim) -> None:
        """Let others claim a request."""
