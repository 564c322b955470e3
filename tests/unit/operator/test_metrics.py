from turnmill_operator import metrics
from turnmill_operator.status import State


def value(name: str, **labels: str) -> float | None:
    return metrics.REGISTRY.get_sample_value(name, labels)


def test_a_namespace_without_jobs_keeps_its_series_at_zero():
    gauges = metrics.JobGauges()

    gauges.update({("jobs-deleted", State.RUNNING): 2})
    assert value("turnmill_operator_jobs", namespace="jobs-deleted", state="Running") == 2
    gauges.update({})

    assert value("turnmill_operator_jobs", namespace="jobs-deleted", state="Running") == 0


def test_attempt_counters_start_at_zero_in_every_namespace_with_jobs():
    metrics.JobGauges().update({("fresh", State.QUEUED): 1})

    for outcome in ("complete", "failed"):
        assert value("turnmill_operator_attempts_total", namespace="fresh", outcome=outcome) == 0


def test_updating_the_gauges_keeps_attempt_counts():
    gauges = metrics.JobGauges()
    gauges.update({("counted", State.RUNNING): 1})
    metrics.ATTEMPTS.labels("counted", "failed").inc()

    gauges.update({("counted", State.RUNNING): 1})

    assert value("turnmill_operator_attempts_total", namespace="counted", outcome="failed") == 1
