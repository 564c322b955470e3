"""Checks histories of calls on trajectories: each trajectory's state must behave like one register.

The state of a trajectory is the list of the executions that have changed it, "CALL.NUMBER" each; a call answers with
the list that it saw, its own execution last if it wrote. From such answers the order of the calls is known, so a
history can be checked for linearizability (Herlihy and Wing, 1990) exactly, as in Elle (Kingsbury and Alvaro, 2020).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Operation:
    """One call as its client saw it; several operations with one id are repeats of one call."""

    trajectory: str
    call: str
    writes: bool
    begun: float
    """Time at which the client sent it first."""

    ended: float | None = None
    """Time of the answer; None if there was none, so that the call took effect or did not."""

    seen: tuple[str, ...] | None = None
    """Executions that have changed the state, in their order, as the answer has them; None without an answer."""


def violations(history: Iterable[Operation]) -> list[str]:
    """Return what no register could have answered, in words; empty if the history is linearizable."""
    by_trajectory: dict[str, list[Operation]] = defaultdict(list)
    for operation in history:
        by_trajectory[operation.trajectory].append(operation)
    return [
        f"{trajectory}: {problem}"
        for trajectory, operations in by_trajectory.items()
        for problem in _problems(operations)
    ]


def _problems(operations: Sequence[Operation]) -> Iterator[str]:
    sent = {call: min(each.begun for each in repeats) for call, repeats in _by_call(operations).items()}
    answered = [each for each in operations if each.seen is not None]
    longest: tuple[str, ...] = max((each.seen or () for each in answered), key=len, default=())
    if len(set(map(_call_of, longest))) < len(longest):
        yield f"a call took effect twice: {' '.join(longest)}"
    for call, repeats in _by_call(answered).items():
        if len({each.seen for each in repeats}) > 1:
            answers = " / ".join(" ".join(each.seen or ()) for each in repeats)
            yield f"repeats of {call} got different answers: {answers}"
    for each in answered:
        seen = each.seen or ()
        if longest[: len(seen)] != seen:
            yield f"{each.call} saw {' '.join(seen)}, which is no beginning of {' '.join(longest)}"
        if each.writes and (not seen or _call_of(seen[-1]) != each.call):
            yield f"{each.call} is not the last call that its answer has: {' '.join(seen)}"
        if early := [entry for entry in seen if sent.get(_call_of(entry), 0.0) > (each.ended or 0.0)]:
            yield f"{each.call} saw calls that were not sent yet: {' '.join(early)}"
    yield from _against_time(answered)


def _against_time(answered: Sequence[Operation]) -> Iterator[str]:
    """Yield calls that saw less than one that had been answered before they were sent."""
    by_end = sorted(answered, key=lambda each: each.ended or 0.0)
    best, position = None, 0
    for each in sorted(answered, key=lambda each: each.begun):
        while position < len(by_end) and (by_end[position].ended or 0.0) < each.begun:
            known = by_end[position]
            if best is None or len(known.seen or ()) >= len(best.seen or ()):
                best = known
            position += 1
        # A repeat of an answered call gets the answer of that time.
        if (
            best is not None
            and len(each.seen or ()) < len(best.seen or ())
            and not _was_answered(each, by_end, position)
        ):
            seen, known_before = " ".join(each.seen or ()), " ".join(best.seen or ())
            yield f"{each.call} saw {seen} after {best.call} was answered with {known_before}"


def _was_answered(operation: Operation, by_end: Sequence[Operation], before: int) -> bool:
    return any(each.call == operation.call for each in by_end[:before])


def _call_of(entry: str) -> str:
    return entry.rpartition(".")[0]


def _by_call(operations: Iterable[Operation]) -> dict[str, list[Operation]]:
    found: dict[str, list[Operation]] = defaultdict(list)
    for each in operations:
        found[each.call].append(each)
    return found
