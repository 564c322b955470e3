from turnmill.trajectories.cache import StateCache


def test_a_state_counts_in_its_own_version_alone():
    cache = StateCache(100)
    cache.put("a", "shell", 7, {"x": b"1"})

    assert cache.version("a", "shell") == 7
    assert cache.get("a", "shell", 7) == {"x": b"1"}
    assert cache.get("a", "shell", 8) is None
    assert cache.get("a", "sql", 7) is None


def test_what_has_been_unused_for_longest_makes_room():
    cache = StateCache(100)
    for name in "abc":
        cache.put(name, "shell", 1, {"x": bytes(30)})
    cache.get("a", "shell", 1)

    cache.put("d", "shell", 1, {"x": bytes(30)})

    assert [name for name in "abcd" if cache.version(name, "shell")] == ["a", "c", "d"]
    assert cache.num_bytes == 93


def test_a_state_larger_than_the_cache_is_not_kept_and_drops_the_one_before_it():
    cache = StateCache(10)
    cache.put("a", "shell", 1, {"x": b"1"})

    cache.put("a", "shell", 2, {"x": bytes(10)})

    assert cache.version("a", "shell") == 0
    assert cache.num_bytes == 0


def test_a_cache_of_no_bytes_keeps_nothing():
    cache = StateCache(0)

    cache.put("a", "shell", 1, {"x": b"1"})

    assert cache.version("a", "shell") == 0
