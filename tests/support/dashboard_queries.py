"""The queries of the dashboards, sent to a Prometheus."""

from collections.abc import Sequence

from support import promql
from support.prometheus import PrometheusApi
from turnmill.observability.dashboards.board import GATEWAY, OPERATOR, Query, Source
from turnmill.observability.dashboards.boards import BOARDS
from turnmill.observability.dashboards.foreign import RAY


def queries_of_runs() -> list[Query]:
    """Return the queries whose series all come from runs."""
    return _selected_by("training_job")


def queries_of_tool_servers() -> list[Query]:
    """Return the queries whose series all come from tool servers."""
    others = queries_of_operator() + queries_of_gateways()
    return [query for query in _selected_by("job") if query not in others]


def queries_of_gateways() -> list[Query]:
    """Return the queries whose series all come from gateways."""
    return _on_boards_of(GATEWAY)


def queries_of_operator() -> list[Query]:
    """Return the queries whose series all come from turnmill's operator."""
    return _on_boards_of(OPERATOR)


def queries_of_ray() -> list[Query]:
    """Return the queries whose series all come from Ray, including those of vLLM."""
    return _selected_by("ray_io_cluster")


def needs_gpus(query: Query) -> bool:
    """Return True if a query has no data without GPUs: it reads their metrics or divides by their number."""
    of_gpus = {"turnmill_gpus", *(name for name, labels in RAY.items() if "GpuDeviceName" in labels)}
    return not promql.reads(query.expression).names.isdisjoint(of_gpus)


def queries_without_data(prometheus: PrometheusApi, queries: Sequence[Query], **variables: str) -> list[str]:
    """Return the queries without data, with these values of the dashboards' variables."""
    expressions = [promql.with_values(query.expression, **variables) for query in queries]
    return [expression for expression in expressions if not prometheus.has_seen(expression)]


def _on_boards_of(source: Source) -> list[Query]:
    # Several sources select by the same label.
    boards = [board for board in BOARDS if source in board.sources]
    found = _selected_by("job")
    return [query for board in boards for panel in board.panels for query in panel.queries if query in found]


def _selected_by(label: str) -> list[Query]:
    found = [query for board in BOARDS for panel in board.panels for query in panel.queries]
    return [query for query in found if all(label in labels for _, labels in promql.reads(query.expression).selectors)]
