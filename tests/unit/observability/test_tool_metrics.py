import math

from turnmill.observability.tool_metrics import ToolMetrics

INFO = {
    "used_memory": 700,
    "maxmemory": 1000,
    "connected_clients": 3,
    "evicted_keys": 2,
    "aof_delayed_fsync": 5,
    "aof_last_write_status": "err",
    "db0": {"keys": 10, "expires": 4},
    "db1": {"keys": 1, "expires": 0},
}


def store_metrics(metrics: ToolMetrics) -> dict[str, float]:
    families = metrics.registry.collect()
    return {s.name.removeprefix("turnmill_store_"): s.value for f in families for s in f.samples if not s.labels}


def test_the_stores_info_becomes_metrics():
    metrics = ToolMetrics()

    metrics.store.show([INFO])

    shown = store_metrics(metrics)
    assert (shown["up"], shown["memory_bytes"], shown["memory_limit_bytes"]) == (1, 700, 1000)
    assert (shown["keys"], shown["connections"], shown["evicted_keys_total"]) == (11, 3, 2)
    assert (shown["aof_failing"], shown["aof_delayed_writes_total"]) == (1, 5)


def test_the_metrics_of_a_cluster_are_the_sums_over_its_servers():
    metrics = ToolMetrics()

    metrics.store.show([INFO, INFO | {"aof_last_write_status": "ok"}])

    shown = store_metrics(metrics)
    assert (shown["memory_bytes"], shown["memory_limit_bytes"], shown["keys"]) == (1400, 2000, 22)
    assert (shown["aof_failing"], shown["aof_delayed_writes_total"]) == (1, 10)


def test_a_store_without_an_append_only_file_is_not_failing():
    metrics = ToolMetrics()

    metrics.store.show([{"used_memory": 1}])

    assert (store_metrics(metrics)["aof_failing"], store_metrics(metrics)["aof_delayed_writes_total"]) == (0, 0)


def test_a_store_that_does_not_answer_has_only_the_up_metric():
    metrics = ToolMetrics()
    metrics.store.show([INFO])

    metrics.store.show([])

    assert store_metrics(metrics)["up"] == 0
    assert "memory_bytes" not in store_metrics(metrics)
    assert not any(math.isnan(value) for value in store_metrics(metrics).values())
