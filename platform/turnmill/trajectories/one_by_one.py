"""Turns of calls that were in progress when servers died: one at a time, the next death shows which is the cause."""

import asyncio

ALONE = 2
"""Deaths of servers from which on a call is executed while no other such call is."""

PATIENCE_SECONDS, LOOK_SECONDS = 10.0, 0.05
"""How long a call waits for its turn at most, and between two looks whether it has come."""


class OneByOne:
    """The turn of one call among those of this server that were in progress at several deaths.

    All calls in flight share in the first deaths, and one of them at most is the cause. The store refuses a call that
    has ended `MAX_SERVERS` servers (`scripts/begin.lua`): the next death counts for none that still wait here.
    """

    def __init__(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._patience_seconds = patience_seconds
        self._until: dict[str, float] = {}
        """The end of their patience, in the event loop's time, by the holders of the claims that wait."""

        self._holder = ""
        self._token = 0

    def wait_seconds(self, holder: str, deaths: int) -> float:
        """Return 0 if a call may be claimed, whose turn it is from now on; else the seconds until it asks again."""
        if deaths < ALONE or self._holder == holder:
            return 0.0
        if not self._holder:
            self._holder = holder
            return 0.0
        now = asyncio.get_running_loop().time()
        return LOOK_SECONDS if now < self._until.setdefault(holder, now + self._patience_seconds) else 0.0

    def begun(self, holder: str, token: int) -> None:
        """Note the token of a holder's claim, which `end` will name; with 0 it has none, and its turn ends."""
        self._until.pop(holder, None)
        if self._holder == holder:
            self._holder, self._token = (holder, token) if token else ("", 0)

    def end(self, token: int) -> None:
        """End the turn of a claim, if it has it."""
        if token and token == self._token:
            self._holder, self._token = "", 0
