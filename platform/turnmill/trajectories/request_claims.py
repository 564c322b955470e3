"""Claims on the requests of trajectories, so that only one replica of a gateway answers each."""

import asyncio
import contextlib
import itertools
import secrets
from dataclasses import dataclass

from turnmill.core.errors import StoreError
from turnmill.trajectories import scripts
from turnmill.trajectories.client import StoreClient, deadline_in
from turnmill.trajectories.keys import REQUESTS, TURNS, Keys
from turnmill.trajectories.settings import StoreSettings

CLAIM = scripts.load("request_claim")
RELEASE = scripts.load("request_release", allow_oom=True)

BEAT_SECONDS = 0.4
LIFE_SECONDS = 1.5
"""A replica that has not beaten for so long is dead, and others take its requests."""


@dataclass(frozen=True, slots=True)
class RequestClaim:
    """The answer to a claim."""

    name: str
    request: str
    claimant: str
    """Who holds the request: the replica and the number of its claim."""

    held: bool
    """False while another replica answers the request."""

    num_turns: int
    """Number of turns in the journal of the trajectory."""


class RequestClaims:
    """The claims of one replica. They hold as long as it lives, which it says twice a second."""

    def __init__(self, client: StoreClient, run: str, settings: StoreSettings | None = None) -> None:
        self._client = client
        self._keys = Keys(run)
        self._expiry_ms = round((settings or StoreSettings()).expiry_seconds * 1000)
        self._replica = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._answered: list[RequestClaim] = []
        """Claims to be released."""

        self._beating: asyncio.Task[None] | None = None

    async def claim(self, name: str, request: str, *, deadline: float) -> RequestClaim:
        """Claim a request of a trajectory that this replica does not answer yet, unless a replica that lives holds it.

        Raises StoreError.
        """
        if self._beating is None:
            await self._beat(deadline)
            self._beating = self._beating or asyncio.create_task(self._keep_beating())
        own, replaced = f"{self._replica}:{next(self._numbers)}", ""
        while True:
            answer, num_turns = await self._client.run(
                CLAIM,
                self._keys.journal(name),
                request,
                own,
                replaced,
                self._expiry_ms,
                also=(TURNS, REQUESTS),
                deadline=deadline,
            )
            holder = answer.decode()
            if holder == own or await self._lives(holder.partition(":")[0], deadline):
                return RequestClaim(name, request, holder, holder == own, num_turns)
            replaced = holder

    def release(self, claim: RequestClaim) -> None:
        """Let others claim a request, from the next beat on."""
        self._answered.append(claim)

    async def close(self) -> None:
        """Let others claim all requests of this replica."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait([self._beating])
            key = self._keys.replica(self._replica)
            with contextlib.suppress(StoreError):
                await self._client.command("UNLINK", key, deadline=deadline_in(LIFE_SECONDS))

    async def _lives(self, replica: str, deadline: float) -> bool:
        # What is claimed under its own name is a claim that it has not released yet.
        if replica == self._replica:
            return False
        return await self._client.command("GET", self._keys.replica(replica), deadline=deadline) is not None

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            # The next beat tries again; until then, others may take this replica for dead.
            with contextlib.suppress(StoreError):
                await self._beat(deadline_in(LIFE_SECONDS))
                await self._release_answered()

    async def _beat(self, deadline: float) -> None:
        key, life = self._keys.replica(self._replica), round(LIFE_SECONDS * 1000)
        await self._client.command("SET", key, "", "PX", life, deadline=deadline)

    async def _release_answered(self) -> None:
        claims = tuple(self._answered)
        of_trajectories: dict[str, list[str]] = {}
        for claim in claims:
            of_trajectories.setdefault(claim.name, []).extend((claim.request, claim.claimant))
        await asyncio.gather(
            *(
                self._client.run(RELEASE, self._keys.journal(name), *words, deadline=deadline_in(LIFE_SECONDS))
                for name, words in of_trajectories.items()
            )
        )
        del self._answered[: len(claims)]
