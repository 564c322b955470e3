"""Prometheus metrics of a tool server; each has a row in docs/metrics.md."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, get_args

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from turnmill.observability.worker_metrics import metrics_text

StoreInfo = Mapping[str, Any]
"""Fields of Redis' INFO, parsed by redis-py."""

CallOutcome = Literal["done", "invalid", "unmatched", "replayed", "tool_error", "failed", "cancelled"]
"""`invalid`: the tool rejected the action; `tool_error`: the tool raised an exception; `failed`: infrastructure
failed."""

OUTCOMES: tuple[CallOutcome, ...] = get_args(CallOutcome)
CAUSES = (
    "tool", "sandbox", "store", "store_unavailable", "store_full", "stale_claim", "call_in_progress", "call_mismatch",
    "poison_call", "lost_write", "timeout", "queue",
)  # fmt: skip
LIMITS = ("time", "cpu", "memory", "output", "files", "processes")
STORE_OPERATIONS = ("begin", "commit", "release", "finish")

# From writing state to asking a retriever over the network.
SECONDS_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
STORE_SECONDS_BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1, 5, 20)

NO_TOOL = "none"
"""Label of actions that match no tool."""


class ToolMetrics:
    """Metrics of one process of a tool server; with several workers, each serves the sums over all of them."""

    def __init__(self, tools: tuple[str, ...] = ()) -> None:
        # Without this every counter would add a `_created` series that no panel shows.
        prometheus_client.disable_created_metrics()
        self.registry = registry = CollectorRegistry()
        gauge = partial(Gauge, multiprocess_mode="livesum", registry=registry)
        self.calls = Counter("turnmill_tool_calls_total", "Tool calls", ["tool", "outcome"], registry=registry)
        self.call_seconds = Histogram(
            "turnmill_tool_call_seconds",
            "Time of a tool call, from the start of its work to its record in the store",
            ["tool"],
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.queue_seconds = Histogram(
            "turnmill_tool_queue_seconds",
            "Time a request waited before its work began",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.run_seconds = Histogram(
            "turnmill_tool_run_seconds",
            "Time of a tool call within the tool",
            ["tool"],
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self.calls_in_flight = gauge(
            "turnmill_tool_calls_in_flight",
            "Tool calls that have arrived and are not answered, those that wait included",
        )
        self.failures = Counter(
            "turnmill_tool_failures_total", "Tool calls failed by infrastructure", ["cause"], registry=registry
        )
        self.replays = Counter(
            "turnmill_tool_replays_total", "Repeated calls answered from the record", ["tool"], registry=registry
        )
        self.fenced = Counter(
            "turnmill_tool_fenced_writers_total",
            "Results refused because another server had taken the call over",
            registry=registry,
        )
        self.sandbox_runs = Counter("turnmill_sandbox_runs_total", "Runs in the sandbox", registry=registry)
        self.sandbox_in_flight = gauge(
            "turnmill_sandbox_runs_in_flight",
            "Runs in the sandbox that have not ended, those that wait for a place included",
        )
        self.sandbox_limit = gauge("turnmill_sandbox_runs_limit", "Runs in the sandbox at once; others wait")
        self.sandbox_waiting = gauge(
            "turnmill_sandbox_runs_waiting", "Runs that wait for a place or for memory in the sandbox"
        )
        self.sandbox_memory = gauge(
            "turnmill_sandbox_memory_bytes",
            "Memory that runs in the sandbox may use together, by their limits; others wait",
        )
        self.sandbox_seconds = Histogram(
            "turnmill_sandbox_run_seconds", "Time of a run in the sandbox", buckets=SECONDS_BUCKETS, registry=registry
        )
        self.sandbox_kills = Counter(
            "turnmill_sandbox_kills_total", "Runs in the sandbox that a limit ended", ["limit"], registry=registry
        )
        self.store_operations = Counter(
            "turnmill_store_operations_total",
            "Operations on the trajectory store",
            ["operation", "outcome"],
            registry=registry,
        )
        self.store_seconds = Histogram(
            "turnmill_store_operation_seconds",
            "Time of an operation on the trajectory store",
            ["operation"],
            buckets=STORE_SECONDS_BUCKETS,
            registry=registry,
        )
        self.store_bytes = Counter(
            "turnmill_store_bytes_total",
            "Bytes of state and results read from and written to the trajectory store",
            ["direction"],
            registry=registry,
        )
        self.store = StoreHealth()
        registry.register(self.store)
        self._initialize_series()
        self.show(tools)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        # The worker that answers has just queried the store: its values are the latest.
        return metrics_text(self.registry, self.store)

    def show(self, tools: tuple[str, ...]) -> None:
        """Create the series of tools at zero, as a rate would miss the first increase of a series that begins at 1."""
        for tool in tools:
            self.call_seconds.labels(tool)
            self.run_seconds.labels(tool)
            self.replays.labels(tool)
            for outcome in OUTCOMES:
                self.calls.labels(tool, outcome)

    def _initialize_series(self) -> None:
        self.calls.labels(NO_TOOL, "unmatched")
        for cause in CAUSES:
            self.failures.labels(cause)
        for limit in LIMITS:
            self.sandbox_kills.labels(limit)
        for operation in STORE_OPERATIONS:
            self.store_seconds.labels(operation)
            for outcome in ("done", "failed"):
                self.store_operations.labels(operation, outcome)
        for direction in ("read", "written"):
            self.store_bytes.labels(direction)


class StoreHealth:
    """Metrics of the trajectory store, from its INFO at each scrape; of a cluster, the sums over its primaries."""

    def __init__(self) -> None:
        self._infos: Sequence[StoreInfo] = ()

    def show(self, infos: Sequence[StoreInfo]) -> None:
        """Set the fields of Redis' INFO of each server; none if the store did not answer."""
        self._infos = infos

    def collect(self) -> Iterator[Metric]:
        """Yield whether the store answers and, if it does, its metrics."""
        infos = self._infos
        yield GaugeMetricFamily("turnmill_store_up", "Whether the trajectory store answers", bool(infos))
        gauges = (
            ("memory_bytes", "Memory that the store has taken", _total(infos, "used_memory")),
            ("memory_limit_bytes", "Memory that the store may take; 0 for any", _total(infos, "maxmemory")),
            ("keys", "Keys in the store", sum(map(_num_keys, infos)) if infos else None),
            ("connections", "Clients that are connected to the store", _total(infos, "connected_clients")),
            ("aof_failing", "Whether the last write to the append-only file failed", _aof_failing(infos)),
        )
        for name, help_, value in gauges:
            yield GaugeMetricFamily(f"turnmill_store_{name}", help_, value)
        counters = (
            ("evicted_keys", "Keys that the store threw away to make room", _total(infos, "evicted_keys")),
            (
                "aof_delayed_writes",
                "Writes that waited for the disk of the append-only file",
                _total(infos, "aof_delayed_fsync"),
            ),
        )
        for name, help_, value in counters:
            yield CounterMetricFamily(f"turnmill_store_{name}", help_, value)


def _total(infos: Sequence[StoreInfo], field: str) -> int | None:
    return sum(info.get(field, 0) for info in infos) if infos else None


def _num_keys(info: StoreInfo) -> int:
    return sum(fields["keys"] for name, fields in info.items() if name.startswith("db") and "keys" in fields)


def _aof_failing(infos: Sequence[StoreInfo]) -> bool | None:
    return any(info.get("aof_last_write_status", "ok") != "ok" for info in infos) if infos else None
