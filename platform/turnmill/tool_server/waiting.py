"""Time that a call waits for the sandbox, which is part of its request's queue time."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class Waiting:
    """Time that a call has waited so far."""

    seconds: float = 0.0


_of_call: ContextVar[Waiting | None] = ContextVar("waiting", default=None)


@contextmanager
def measure_waiting() -> Iterator[Waiting]:
    """Add up the waiting time of the call that runs inside."""
    waiting = Waiting()
    token = _of_call.set(waiting)
    try:
        yield waiting
    finally:
        _of_call.reset(token)


def add_waiting(seconds: float) -> None:
    """Add waiting time to the call that runs, if one does."""
    waiting = _of_call.get()
    if waiting is not None:
        waiting.seconds += seconds
