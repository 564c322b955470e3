"""How long a request may take, as its client says in headers."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Self

from fastapi import Header

ANSWER_MARGIN_SECONDS = 0.25
"""Time after which a request is answered that has not got as far as its calls."""

DeadlineSeconds = Annotated[
    float | None,
    Header(
        alias="X-Deadline-Seconds",
        description="How long the client will wait from now on: calls that take longer are given up and fail with 503.",
        gt=0,
        le=86400,
        allow_inf_nan=False,
    ),
]

AnswerSeconds = Annotated[
    float | None,
    Header(
        alias="X-Answer-Seconds",
        description="Within how many seconds to answer. Calls with a `call_id` that are not done by then go on: the "
        "answer is 503 with `call_in_progress`, `store_unavailable` or `queue`, and the same request, sent again, "
        "joins them. `X-Deadline-Seconds` bounds their tools alone.",
        gt=0,
        le=86400,
        allow_inf_nan=False,
    ),
]

LATE = {
    "timeout": "The calls did not end within the client's deadline.",
    "queue": "The request did not get its turn in time: send it again.",
}
"""Details of requests that have taken their time, by cause."""


@dataclass(frozen=True, slots=True)
class RequestTime:
    """Times of a request, which count from its arrival, in the event loop's time; None sets no limit."""

    deadline: float | None = None
    answer_at: float | None = None
    """When to answer a client that will send its request again."""

    @classmethod
    def of(cls, deadline_seconds: float | None, answer_seconds: float | None) -> Self:
        """Return the times of a request that arrives now."""
        now = asyncio.get_running_loop().time()
        return cls(*(None if seconds is None else now + seconds for seconds in (deadline_seconds, answer_seconds)))

    @property
    def limit(self) -> float | None:
        """When the request is given up."""
        return self.deadline if self.answer_at is None else self.answer_at + ANSWER_MARGIN_SECONDS

    def late_cause(self) -> str | None:
        """Return the cause if the request has taken its time; None if it has not."""
        if self.limit is None or asyncio.get_running_loop().time() < self.limit:
            return None
        return "timeout" if self.answer_at is None else "queue"
