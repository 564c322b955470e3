"""Prometheus metrics of a gateway; each has a row in docs/metrics.md."""

from functools import partial
from typing import Literal, get_args

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from turnmill.observability.worker_metrics import metrics_text

EngineOutcome = Literal["done", "refused", "failed"]
"""`refused`: the engine rejects the request; `failed`: it did not answer, or with an error of its own."""

ENGINE_OUTCOMES: tuple[EngineOutcome, ...] = get_args(EngineOutcome)
NO_BRANCH = "none"
"""Label of turns that continue their conversation."""

# From an answer that is recorded to a long one of a busy engine.
SECONDS_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600)


class GatewayMetrics:
    """Metrics of one process of a gateway; with several workers, each serves the sums over all of them."""

    def __init__(self, apis: tuple[str, ...], branch_reasons: tuple[str, ...]) -> None:
        """Take the values of the labels `api` and `branch`, whose series begin at zero."""
        # Without this every counter would add a `_created` series that no panel shows.
        prometheus_client.disable_created_metrics()
        self.registry = registry = CollectorRegistry()
        histogram = partial(Histogram, buckets=SECONDS_BUCKETS, registry=registry)
        self.requests = Counter(
            "turnmill_gateway_requests_total", "Requests for an answer", ["api", "status"], registry=registry
        )
        self.request_seconds = histogram(
            "turnmill_gateway_request_seconds", "Time from a request to the end of its answer", ["api"]
        )
        self.requests_in_flight = Gauge(
            "turnmill_gateway_requests_in_flight",
            "Requests for an answer that have arrived and are not answered",
            multiprocess_mode="livesum",
            registry=registry,
        )
        self.engine_requests = Counter(
            "turnmill_gateway_engine_requests_total", "Requests to the engine", ["outcome"], registry=registry
        )
        self.engine_seconds = histogram(
            "turnmill_gateway_engine_seconds", "Time of a request to the engine that was answered"
        )
        self.tokens = Counter(
            "turnmill_gateway_tokens_total", "Tokens that the engine read and generated", ["kind"], registry=registry
        )
        self.turns = Counter(
            "turnmill_gateway_turns_total", "Answers recorded in the trajectory store", ["branch"], registry=registry
        )
        for api in apis:
            for status in ("200", "503"):
                self.requests.labels(api, status)
            self.request_seconds.labels(api)
        for outcome in ENGINE_OUTCOMES:
            self.engine_requests.labels(outcome)
        for kind in ("prompt", "response"):
            self.tokens.labels(kind)
        for reason in (NO_BRANCH, *branch_reasons):
            self.turns.labels(reason)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return metrics_text(self.registry)
