"""Time that the calls of a request have, for the tools and for the trajectory store."""

import asyncio
import math
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from turnmill.core.errors import CallInProgressError, CallTimeoutError, StoreUnavailableError
from turnmill.core.loop_time import give_up

STORE_MARGIN_SECONDS = 0.05
"""Time by which operations on the store time out before their call, so that the error names the store."""

COMMIT_SECONDS = 240.0
"""How long the result of a call that outlives its request waits for the store: the effect has taken place."""

ResultT = TypeVar("ResultT")


class CallTime:
    """Time that the calls of a request have, in the event loop's.

    `deadline` is the client's, `latest` the server's own. Calls that outlive their request go on when it has been
    answered: each repeat of the request may move the deadline, which ends their tools alone.
    """

    def __init__(self, deadline: float | None = None, *, latest: float | None = None) -> None:
        self.outlives = False
        """Whether the calls outlive their request."""

        self._latest = latest
        self._num_in_store = 0
        self.deadline = self._earlier(deadline)

    def extend(self, deadline: float | None) -> None:
        """Move the client's deadline, unless it is later already."""
        if self.deadline is not None:
            self.deadline = self._earlier(None if deadline is None else max(self.deadline, deadline))

    def _earlier(self, deadline: float | None) -> float | None:
        return min((each for each in (deadline, self._latest) if each is not None), default=None)

    def store_deadline(self, seconds: float) -> float:
        """Return the deadline of an operation on the store that starts now and may take so many seconds."""
        latest = math.inf if self.deadline is None else self.deadline - STORE_MARGIN_SECONDS
        return min(_now() + seconds, latest)

    def commit_deadline(self, seconds: float) -> float:
        """Return the deadline for recording a result, alike."""
        return _now() + max(seconds, COMMIT_SECONDS) if self.outlives else self.store_deadline(seconds)

    @contextmanager
    def in_store(self) -> Iterator[None]:
        """Count a call as one that waits for the store while the context lasts."""
        self._num_in_store += 1
        try:
            yield
        finally:
            self._num_in_store -= 1

    def still_waiting(self) -> StoreUnavailableError | CallInProgressError:
        """Return what to tell a client for now: the store is awaited, or a tool is at work."""
        if self._num_in_store:
            return StoreUnavailableError("The call waits for the trajectory store: send it again.")
        return CallInProgressError("The call is being executed: send it again for its result.")

    async def limit(self, work: Awaitable[ResultT]) -> ResultT:
        """Return what a tool returns. Raises CallTimeoutError at the deadline, if the call outlives its request."""
        if not self.outlives:
            # The whole request is cancelled at its deadline.
            return await work
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                left = None if self.deadline is None else self.deadline - _now()
                if left is not None and left <= 0:
                    raise CallTimeoutError("The tool did not end within the time that the client gives it.")
                await asyncio.wait({task}, timeout=left)
            return task.result()
        finally:
            await give_up(task)


def _now() -> float:
    return asyncio.get_running_loop().time()
