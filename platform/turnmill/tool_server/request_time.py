"""How long a request may take, as its client says in headers."""

import asyncio
from functools import partial
from typing import Annotated

from fastapi import Header

ANSWER_MARGIN_SECONDS = 0.25
"""Time after which a request is answered that has not got as far as its calls."""

_seconds = partial(Header, gt=0, le=86400, allow_inf_nan=False)

DeadlineSeconds = Annotated[
    float | None,
    _seconds(
        alias="X-Deadline-Seconds",
        description="How long the client will wait from now on: calls that take longer are given up and fail with 503.",
    ),
]

AnswerSeconds = Annotated[
    float | None,
    _seconds(
        alias="X-Answer-Seconds",
        description="Within how many seconds to answer. Calls with a `call_id` that are not done by then go on: the "
        "answer is 503 with `call_in_progress`, `store_unavailable` or `queue`, and the same request, sent again, "
        "joins them. `X-Deadline-Seconds` bounds their tools alone.",
    ),
]


class RequestTime:
    """Times of a request that arrives now, in the event loop's time; None sets no limit."""

    def __init__(self, deadline_seconds: float | None, answer_seconds: float | None) -> None:
        self._deadline_seconds = deadline_seconds
        self._answer_seconds = answer_seconds
        now = asyncio.get_running_loop().time()
        self.deadline = None if deadline_seconds is None else now + deadline_seconds
        self.answer_at = None if answer_seconds is None else now + answer_seconds
        """When to answer a client that will send its request again."""

    @property
    def limit(self) -> float | None:
        """When the request is given up."""
        return self.deadline if self.answer_at is None else self.answer_at + ANSWER_MARGIN_SECONDS

    def late(self) -> tuple[str, str] | None:
        """Return cause and detail of the failure of a request that has taken its time; None if it has not."""
        if self.limit is None or asyncio.get_running_loop().time() < self.limit:
            return None
        if self.answer_at is None:
            return "timeout", f"The calls did not end within the client's deadline, {self._deadline_seconds:.3g} s."
        return "queue", f"The request did not get its turn within {self._answer_seconds:.3g} s: send it again."
