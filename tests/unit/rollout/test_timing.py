import pytest

from turnmill.rollout.timing import Timing


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_measured_time_is_counted_by_kind_of_work_and_the_rest_as_loop():
    clock = Clock()
    timing = Timing(clock)

    for seconds in (2.0, 1.0):
        with timing.measure("generation"):
            clock.now += seconds
        clock.now += 0.5
    with timing.measure("tools"):
        clock.now += 4.0

    assert timing.elapsed_seconds() == {"generation": 3.0, "tools": 4.0, "loop": 1.0}


def test_time_before_an_error_is_counted():
    clock = Clock()
    timing = Timing(clock)

    def wait() -> None:
        with timing.measure("tools"):
            clock.now += 30.0
            raise TimeoutError

    with pytest.raises(TimeoutError):
        wait()

    assert timing.elapsed_seconds()["tools"] == 30.0
