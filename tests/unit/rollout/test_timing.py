import pytest

from turnmill.rollout.timing import Timing


class Clock:
    """Moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_measured_time_counts_for_its_part_and_the_rest_for_the_loop():
    clock = Clock()
    timing = Timing(clock)

    for seconds in (2.0, 1.0):
        with timing.measure("generation"):
            clock.now += seconds
        clock.now += 0.5
    with timing.measure("tools"):
        clock.now += 4.0

    assert timing.elapsed_seconds() == {"generation": 3.0, "tools": 4.0, "loop": 1.0}


def test_time_that_ends_in_an_error_counts():
    clock = Clock()
    timing = Timing(clock)

    def wait() -> None:
        with timing.measure("tools"):
            clock.now += 30.0
            raise TimeoutError

    with pytest.raises(TimeoutError):
        wait()

    assert timing.elapsed_seconds()["tools"] == 30.0
