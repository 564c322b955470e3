from turnmill.rollout.episode_metrics import EpisodeMetrics


def test_values_of_a_metric_are_averaged_added_up_or_kept():
    metrics = EpisodeMetrics()
    for value in (1.0, 2.0, 6.0):
        metrics.add("mean", value)
        metrics.sum("sum", value)
        metrics.put("last", value)

    assert metrics.read() == {"mean": 3.0, "sum": 9.0, "last": 6.0}
    assert (metrics.total("sum"), metrics.total("other")) == (9.0, 0.0)
    assert (metrics.count("mean"), metrics.count("other")) == (3, 0)
