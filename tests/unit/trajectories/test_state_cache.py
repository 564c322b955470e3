from turnmill.trajectories.state_cache import ENTRY_BYTES, StateCache


def test_a_cached_state_has_its_version():
    cache = StateCache(3 * (ENTRY_BYTES + 31))
    cache.put("a", "shell", 7, {"x": b"1"})

    assert cache.get("a", "shell") == (7, {"x": b"1"})
    assert cache.get("a", "sql") is None


def test_the_least_recently_used_state_is_evicted():
    cache = StateCache(3 * (ENTRY_BYTES + 31))
    for name in "abc":
        cache.put(name, "shell", 1, {"x": bytes(30)})
    cache.get("a", "shell")

    cache.put("d", "shell", 1, {"x": bytes(30)})

    assert [name for name in "abcd" if cache.get(name, "shell")] == ["a", "c", "d"]
    assert cache.num_bytes == 3 * (ENTRY_BYTES + 31)


def test_a_state_larger_than_the_cache_is_not_cached_and_evicts_its_predecessor():
    cache = StateCache(ENTRY_BYTES + 10)
    cache.put("a", "shell", 1, {"x": b"1"})

    cache.put("a", "shell", 2, {"x": bytes(10)})

    assert cache.get("a", "shell") is None
    assert cache.num_bytes == 0


def test_a_cache_of_zero_bytes_stays_empty():
    cache = StateCache(0)

    cache.put("a", "shell", 1, {"x": b"1"})

    assert cache.get("a", "shell") is None


def test_a_cached_state_has_overhead():
    cache = StateCache(10 * ENTRY_BYTES)

    for number in range(100):
        cache.put(str(number), "shell", 1, {"x": b"1"})

    assert sum(cache.get(str(number), "shell") is not None for number in range(100)) == 9


def test_a_trajectory_is_forgotten_with_all_its_tools():
    cache = StateCache(10 * ENTRY_BYTES)
    for trajectory, tool in (("a", "shell"), ("a", "sql"), ("b", "shell")):
        cache.put(trajectory, tool, 1, {"x": b"1"})

    cache.forget("a")
    cache.forget("unknown")

    assert [cache.get("a", "shell"), cache.get("a", "sql"), cache.get("b", "shell")] == [None, None, (1, {"x": b"1"})]
    assert cache.num_bytes == ENTRY_BYTES + 2
