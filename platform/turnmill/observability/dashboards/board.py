"""Boards, panels and queries, independent of Grafana."""

from dataclasses import dataclass
from typing import Literal

WINDOW = "$window"
"""Range over which counters are read that grow once per step: a step takes longer than a scrape."""

RECENT = "$__rate_interval"
"""Range over which counters are read that grow all the time."""


@dataclass(frozen=True, slots=True)
class Source:
    """Origin of series, and the variables that select among them."""

    labels: tuple[str, ...]
    """Labels to choose by; each has a variable of its name."""

    anchor: str
    """A metric that every such source has: its labels are the values of the variables."""

    def __call__(self, metric: str, matchers: str = "") -> str:
        """Return a selector with the filters of the board."""
        chosen = [f'{label}=~"${label}"' for label in self.labels]
        return f"{metric}{{{', '.join([*chosen, matchers] if matchers else chosen)}}}"


RUN = Source(("namespace", "training_job"), "turnmill_step")
TOOL_SERVER = Source(("namespace", "job"), "turnmill_tool_calls_in_flight")
OPERATOR = Source(("job",), "turnmill_operator_leader")
RAY = Source(("namespace", "ray_io_cluster"), "ray_node_cpu_utilization")
CLUSTER = Source(("namespace",), "kube_pod_container_resource_requests")


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression and the name of what it draws."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture: a number or lines over time."""

    title: str
    says: str
    """One sentence that tells how to read it."""

    unit: str
    """A unit of Grafana's, or `suffix: ...`."""

    queries: tuple[Query, ...]
    kind: Literal["lines", "stacked", "number"] = "lines"
    width: int = 8
    """Of 24 columns."""

    max: float | None = None
    alarming_from: float | None = None
    """From this value on it is drawn in red."""


@dataclass(frozen=True, slots=True)
class Row:
    """Panels that answer one question."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard."""

    name: str
    """Of its file, and after a prefix its uid."""

    title: str
    says: str
    sources: tuple[Source, ...]
    """The first one's variables come first."""

    rows: tuple[Row, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        """Every panel."""
        return tuple(panel for row in self.rows for panel in row.panels)


def lines(title: str, says: str, unit: str, *queries: tuple[str, str], **options: float) -> Panel:
    """Return a panel with lines."""
    return Panel(title, says, unit, tuple(Query(*query) for query in queries), **options)  # type: ignore[arg-type]


def stacked(title: str, says: str, unit: str, *queries: tuple[str, str], **options: float) -> Panel:
    """Return a panel with stacked areas."""
    made = tuple(Query(*query) for query in queries)
    return Panel(title, says, unit, made, kind="stacked", **options)  # type: ignore[arg-type]


def number(title: str, says: str, unit: str, *queries: tuple[str, str], width: int = 4, **options: float) -> Panel:
    """Return a panel with the last value in large type."""
    made = tuple(Query(*query) for query in queries)
    return Panel(title, says, unit, made, kind="number", width=width, **options)


def quantile(share: float, buckets: str, *, by: str = "", window: str = RECENT) -> str:
    """Return the query for a quantile of a histogram, given the selector of its buckets."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share:g}, sum by ({labels}) (rate({buckets}[{window}])))"


def percentiles(
    buckets: str, *, by: str = "", high: float = 0.99, window: str = RECENT
) -> tuple[tuple[str, str], tuple[str, str]]:
    """Two queries: the median of a histogram and a high quantile, perhaps by labels."""
    name = " ".join(f"{{{{{label}}}}}" for label in by.split(", ")) + ": " if by else ""
    median, highest = (quantile(share, buckets, by=by, window=window) for share in (0.5, high))
    return (median, f"{name}p50"), (highest, f"{name}p{100 * high:g}")
