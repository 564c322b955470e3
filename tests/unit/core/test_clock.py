import pytest

from turnmill.core import clock as module
from turnmill.core.clock import Clock


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock that is never set, and the time of day."""
    times = [100.0, 5000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: times[0])
    monkeypatch.setattr(module.time, "time", lambda: times[1])
    return times


def test_a_clock_that_is_set_back_is_behind_until_it_has_caught_up(times: list[float]):
    clock = Clock()
    times[:] = 110.0, 5010.0
    assert clock.seconds_behind() == 0

    times[:] = 111.0, 1411.0
    assert clock.seconds_behind() == 3600
    times[:] = 131.0, 1431.0
    assert clock.seconds_behind() == 3580

    times[:] = 3711.0, 5011.0
    assert clock.seconds_behind() == 0


def test_a_clock_that_is_set_forward_and_back_is_behind_too(times: list[float]):
    """Timers of between wait until a time of day that is an hour away."""
    clock = Clock()
    times[:] = 110.0, 8610.0
    assert clock.seconds_behind() == 0

    times[:] = 120.0, 5020.0
    assert clock.seconds_behind() == 3600

    times[:] = 130.0, 8630.0
    assert clock.seconds_behind() == 0


def test_a_step_is_noticed_late_at_its_whole_length(times: list[float]):
    clock = Clock()

    times[:] = 700.0, 2000.0

    assert clock.seconds_behind() == 3600
