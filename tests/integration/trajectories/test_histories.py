"""Calls, faults and a store that loses writes: every history must be one of a register that all servers share."""

import asyncio
from collections.abc import Sequence

import pytest

from support.cluster_histories import ClusterHistory
from support.history_checker import Operation, violations
from support.store_histories import SABOTAGES, StoreHistory, changed_scripts

NUM_OPERATIONS = 1500
MAX_SEEDS = 5


def problems(seed: int, sabotage: str | None = None, *, in_cluster: bool = False) -> list[str]:
    with changed_scripts(sabotage, steps_clock=not in_cluster):
        history = asyncio.run((ClusterHistory if in_cluster else StoreHistory)(seed).play(NUM_OPERATIONS))
    return [*violations(history.operations), *history.problems, *(f"{call} hangs" for call in history.hung)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
def test_faults_leave_histories_of_one_register(seed: int):
    assert problems(seed) == []


@pytest.mark.slow
@pytest.mark.nightly
def test_a_cluster_whose_primaries_die_and_whose_slots_move_leaves_histories_of_one_register():
    assert problems(0, in_cluster=True) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "sabotage",
    # One shows that the check works; the others are for changes of the store.
    [pytest.param(each, marks=[pytest.mark.nightly] * bool(number)) for number, each in enumerate(SABOTAGES)],
)
def test_histories_of_a_broken_store_are_found(sabotage: str):
    assert any(problems(seed, sabotage) for seed in range(MAX_SEEDS))


def call(name: str, times: tuple[float, float | None], seen: str | None, *, writes: bool = True) -> Operation:
    return Operation("t", name, writes, times[0], times[1], None if seen is None else tuple(seen.split()))


@pytest.mark.parametrize(
    "history",
    [
        [],
        [call("a", (0, 1), "a.1"), call("b", (2, 3), "a.1 b.1"), call("c", (4, 5), "a.1 b.1", writes=False)],
        [call("a", (0, 3), "b.1 a.1"), call("b", (1, 2), "b.1")],
        [call("a", (0, None), None), call("b", (2, 3), "b.1"), call("c", (4, 5), "b.1 a.1 c.1")],
        [call("a", (0, 1), "a.1"), call("b", (2, 3), "a.1 b.1"), call("a", (4, 5), "a.1")],
    ],
    ids=["empty", "in order", "at once", "a late effect", "a late repeat"],
)
def test_a_history_of_a_register_has_no_violations(history: Sequence[Operation]):
    assert violations(history) == []


@pytest.mark.parametrize(
    ("history", "problem"),
    [
        ([call("a", (0, 1), "a.1"), call("b", (2, 3), "b.1")], "t: b saw b.1, which is no beginning of a.1"),
        ([call("a", (0, 1), "a.1 a.2")], "t: a call took effect twice: a.1 a.2"),
        ([call("a", (0, 2), "a.1"), call("a", (1, 3), "a.2")], "t: repeats of a got different answers: a.1 / a.2"),
        (
            [call("a", (0, 1), "a.1"), call("b", (2, 5), "a.1 b.1"), call("c", (3, 6), "a.1 c.1")],
            "t: c saw a.1 c.1, which is no beginning of a.1 b.1",
        ),
        ([call("a", (0, 1), "")], "t: a is not the last call that its answer has: "),
        ([call("a", (0, 1), "b.1 a.1"), call("b", (2, 3), "b.1")], "t: a saw calls that were not sent yet: b.1"),
        (
            [call("a", (0, 1), "a.1"), call("b", (2, 3), "", writes=False)],
            "t: b saw  after a was answered with a.1",
        ),
    ],
    ids=["lost", "twice", "two answers", "forked", "without itself", "from the future", "a stale read"],
)
def test_a_violation_is_told(history: Sequence[Operation], problem: str):
    assert problem in violations(history)
