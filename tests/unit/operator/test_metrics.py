from turnmill_operator import metrics
from turnmill_operator.status import State


def value(name: str, **labels: str) -> float | None:
    return metrics.REGISTRY.get_sample_value(name, labels)


def test_a_namespace_without_jobs_keeps_its_zeros():
    counts = metrics.JobCounts()

    counts.show({("came-and-went", State.RUNNING): 2})
    assert value("turnmill_operator_jobs", namespace="came-and-went", state="Running") == 2
    counts.show({})

    assert value("turnmill_operator_jobs", namespace="came-and-went", state="Running") == 0


def test_attempts_count_from_zero_in_every_namespace_that_has_jobs():
    metrics.JobCounts().show({("fresh", State.QUEUED): 1})

    for outcome in ("complete", "failed"):
        assert value("turnmill_operator_attempts_total", namespace="fresh", outcome=outcome) == 0


def test_showing_attempts_leaves_what_was_counted():
    counts = metrics.JobCounts()
    counts.show({("counted", State.RUNNING): 1})
    metrics.ATTEMPTS.labels("counted", "failed").inc()

    counts.show({("counted", State.RUNNING): 1})

    assert value("turnmill_operator_attempts_total", namespace="counted", outcome="failed") == 1
