import pytest

from turnmill.core.errors import SettingsError
from turnmill.trajectories.settings import StoreSettings


@pytest.mark.parametrize("name", ["lease_seconds", "expiry_seconds", "max_trajectory_bytes", "max_connections"])
def test_a_limit_of_zero_is_refused(name):
    with pytest.raises(SettingsError, match=rf"{name} \(0\) must be greater than 0"):
        StoreSettings(**{name: 0})


def test_the_cache_can_be_disabled():
    assert StoreSettings(cache_bytes=0).cache_bytes == 0
    with pytest.raises(SettingsError, match="0 disables the cache"):
        StoreSettings(cache_bytes=-1)
