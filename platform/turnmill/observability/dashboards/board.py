"""Dashboards, panels and queries, independent of Grafana."""

from dataclasses import dataclass
from typing import Literal

WINDOW = "$window"
"""Range for rates of counters that grow once per step, as a step takes longer than a scrape interval."""

PRICE = "$price"
"""Price of a GPU hour, which a visitor enters."""

RECENT = "$__rate_interval"
"""Range for rates of counters that grow continuously."""


@dataclass(frozen=True, slots=True)
class Source:
    """Origin of series, and the dashboard variables that select among them."""

    labels: tuple[str, ...]
    """Labels to select by; each has a variable of the same name."""

    anchor: str
    """Metric of every such source, whose label values are the values of the variables."""

    def __call__(self, metric: str, matchers: str = "") -> str:
        """Return a selector with the filters of the dashboard."""
        chosen = [f'{label}=~"${label}"' for label in self.labels]
        return f"{metric}{{{', '.join([*chosen, matchers] if matchers else chosen)}}}"


RUN = Source(("namespace", "training_job"), "turnmill_step")
TOOL_SERVER = Source(("namespace", "job"), "turnmill_tool_calls_in_flight")
GATEWAY = Source(("namespace", "job"), "turnmill_gateway_requests_in_flight")
OPERATOR = Source(("job",), "turnmill_operator_leader")
RAY = Source(("namespace", "ray_io_cluster"), "ray_node_cpu_utilization")
CLUSTER = Source(("namespace",), "kube_pod_container_resource_requests")
JOBS = Source(("namespace", "training_job"), "turnmill_job_state")
"""Jobs as kube-state-metrics reports them, those that wait or have ended included."""


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL expression and its legend."""

    expression: str
    legend: str
    """Legend of its lines; the heading of its column in a table."""

    unit: str | None = None
    """Unit of its column in a table; None takes the panel's."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart: a number, lines over time, a table with a row per run and a column per query, or states over time."""

    title: str
    description: str
    """One sentence on how to read the panel."""

    unit: str
    """A Grafana unit, or `suffix: ...`."""

    queries: tuple[Query, ...]
    kind: Literal["lines", "stacked", "number", "table", "states"] = "lines"
    width: int = 8
    """Width in columns, of 24."""

    max: float | None = None
    alarming_from: float | None = None
    """Values from this one on are drawn in red."""

    states: tuple[tuple[str, str], ...] = ()
    """Names and colours of the values 0, 1, ..."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """Events, each drawn as a mark over all panels."""

    name: str
    expression: str
    """PromQL: an event is where it has a sample."""

    color: str


@dataclass(frozen=True, slots=True)
class Row:
    """Panels that answer one question."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard."""

    name: str
    """Name of the file and, after a prefix, uid of the dashboard."""

    title: str
    description: str
    sources: tuple[Source, ...]
    """Sources; the variables of the first come first."""

    rows: tuple[Row, ...]
    annotations: tuple[Annotation, ...] = ()

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All panels."""
        return tuple(panel for row in self.rows for panel in row.panels)


def lines(title: str, description: str, unit: str, *queries: tuple[str, str], **options: float) -> Panel:
    """Return a panel with lines."""
    return Panel(title, description, unit, tuple(Query(*query) for query in queries), **options)  # type: ignore[arg-type]


def stacked(title: str, description: str, unit: str, *queries: tuple[str, str], **options: float) -> Panel:
    """Return a panel with stacked areas."""
    made = tuple(Query(*query) for query in queries)
    return Panel(title, description, unit, made, kind="stacked", **options)  # type: ignore[arg-type]


def number(
    title: str, description: str, unit: str, *queries: tuple[str, str], width: int = 4, **options: float
) -> Panel:
    """Return a panel with the last value as a large number."""
    made = tuple(Query(*query) for query in queries)
    return Panel(title, description, unit, made, kind="number", width=width, **options)  # type: ignore[arg-type]


def table(title: str, description: str, *queries: tuple[str, str, str]) -> Panel:
    """Return a table of runs over the whole width: expression, heading and unit of each column."""
    made = tuple(Query(expression, legend, unit) for expression, legend, unit in queries)
    return Panel(title, description, "none", made, kind="table", width=24)


def timeline(title: str, description: str, states: tuple[tuple[str, str], ...], *queries: tuple[str, str]) -> Panel:
    """Return bars of states over time over the whole width, given the names and colours of the values 0, 1, ..."""
    made = tuple(Query(*query) for query in queries)
    return Panel(title, description, "none", made, kind="states", width=24, states=states)


def replicas(in_flight: str, autoscaler: str) -> Panel:
    """Return a panel of replicas, given a selector of a gauge that each has, and a matcher of their autoscaler."""
    return lines(
        "Replicas",
        "Replicas that answer Prometheus, and those that the autoscaler has and wants.",
        "none",
        (f"count by (namespace) ({in_flight})", "{{namespace}}: answer"),
        (CLUSTER("kube_horizontalpodautoscaler_status_current_replicas", autoscaler), "{{namespace}}: there"),
        (CLUSTER("kube_horizontalpodautoscaler_status_desired_replicas", autoscaler), "{{namespace}}: wanted"),
    )


def quantile(share: float, buckets: str, *, by: str = "", window: str = RECENT) -> str:
    """Return the query for a quantile of a histogram, given the selector of its buckets."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share:g}, sum by ({labels}) (rate({buckets}[{window}])))"


def percentiles(
    buckets: str, *, by: str = "", high: float = 0.99, window: str = RECENT
) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return queries for the median and a high quantile of a histogram, optionally by labels."""
    name = " ".join(f"{{{{{label}}}}}" for label in by.split(", ")) + ": " if by else ""
    median, highest = (quantile(share, buckets, by=by, window=window) for share in (0.5, high))
    return (median, f"{name}p50"), (highest, f"{name}p{100 * high:g}")
