"""Prometheus metrics of the operator; each has a row in docs/metrics.md."""

import time

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from turnmill_operator.status import State

prometheus_client.disable_created_metrics()
REGISTRY = CollectorRegistry()
prometheus_client.ProcessCollector(registry=REGISTRY)

RECONCILE_SECONDS = Histogram(
    "turnmill_operator_reconcile_seconds",
    "Time to reconcile one job",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
    registry=REGISTRY,
)
RECONCILES = Counter("turnmill_operator_reconciles_total", "Reconciliations of jobs", ["outcome"], registry=REGISTRY)
ERRORS = Counter("turnmill_operator_errors_total", "Reconciliations that failed", ["reason"], registry=REGISTRY)
API_REQUESTS = Counter(
    "turnmill_operator_api_requests_total",
    "Requests to the API server",
    ["verb", "resource", "code"],
    registry=REGISTRY,
)
CONFLICTS = Counter(
    "turnmill_operator_apply_conflicts_total",
    "Writes refused because the object had changed",
    ["resource"],
    registry=REGISTRY,
)
ATTEMPTS = Counter(
    "turnmill_operator_attempts_total", "Attempts that ended", ["namespace", "outcome"], registry=REGISTRY
)
MISSED_EVENTS = Counter(
    "turnmill_operator_missed_events_total",
    "Changes found by a listing that no watch had reported",
    ["resource"],
    registry=REGISTRY,
)
LEADER = Gauge("turnmill_operator_leader", "1 in the replica that acts", registry=REGISTRY)
JOBS = Gauge("turnmill_operator_jobs", "Jobs by state", ["namespace", "state"], registry=REGISTRY)
QUEUE_LENGTH = Gauge("turnmill_operator_queue_length", "Jobs waiting to be reconciled", registry=REGISTRY)
QUEUE_AGE = Gauge("turnmill_operator_queue_age_seconds", "Time the oldest of them has waited", registry=REGISTRY)
LIST_AGE = Gauge("turnmill_operator_last_list_age_seconds", "Time since the last full listing", registry=REGISTRY)
EVENT_AGE = Gauge(
    "turnmill_operator_last_event_age_seconds", "Time since a watch last reported a change", registry=REGISTRY
)

ATTEMPT_OUTCOMES = ("complete", "disrupted", "failed")
ERROR_REASONS = ("conflict", "forbidden", "invalid", "server", "unreachable", "other")


def initialize_series() -> None:
    """Create the series of closed label sets at zero."""
    for outcome in ("done", "failed"):
        RECONCILES.labels(outcome)
    for reason in ERROR_REASONS:
        ERRORS.labels(reason)
    for resource in ("agenttrainingjobs", "rayjobs"):
        MISSED_EVENTS.labels(resource)
        CONFLICTS.labels(resource)


class JobGauges:
    """Gauges of jobs by namespace and state; a namespace without jobs keeps its series, at zero."""

    def __init__(self) -> None:
        self._namespaces: set[str] = set()

    def update(self, count_by_state: dict[tuple[str, str], int]) -> None:
        """Set the gauges, and create the counters of attempts at zero: a rate would miss the first of a series."""
        self._namespaces |= {namespace for namespace, _ in count_by_state}
        for namespace in self._namespaces:
            for state in State:
                JOBS.labels(namespace, state).set(count_by_state.get((namespace, state), 0))
            for outcome in ATTEMPT_OUTCOMES:
                ATTEMPTS.labels(namespace, outcome)


class AgeGauge:
    """A gauge of the time since something last happened."""

    def __init__(self, gauge: Gauge) -> None:
        self._at = time.monotonic()
        gauge.set_function(self.seconds)

    def reset(self) -> None:
        """Start again from zero."""
        self._at = time.monotonic()

    def seconds(self) -> float:
        """Return the seconds since the last reset."""
        return time.monotonic() - self._at
