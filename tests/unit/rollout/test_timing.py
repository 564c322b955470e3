import pytest

from turnmill.rollout.timing import Timing


class Clock:
    """Moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_counts_for_what_was_waited_for_and_the_rest_for_the_loop():
    clock = Clock()
    waits = Timing(clock)

    for seconds in (2.0, 1.0):
        with waits.on("generation"):
            clock.now += seconds
        clock.now += 0.5
    with waits.on("tools"):
        clock.now += 4.0

    assert waits.read() == {"generation": 3.0, "tools": 4.0, "loop": 1.0}


def test_a_wait_that_ends_in_an_error_counts():
    clock = Clock()
    waits = Timing(clock)

    def wait() -> None:
        with waits.on("tools"):
            clock.now += 30.0
            raise TimeoutError

    with pytest.raises(TimeoutError):
        wait()

    assert waits.read()["tools"] == 30.0
