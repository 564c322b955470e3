"""The Grafana dashboards: the generated files, and rules for every panel and query."""

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from importlib import util
from pathlib import Path

import pytest
from prometheus_client import Metric

from support import promql
from turnmill.gateway.instrumentation import gateway_metrics
from turnmill.observability.dashboards.board import (
    CLUSTER,
    GATEWAY,
    JOBS,
    OPERATOR,
    RAY,
    RUN,
    TOOL_SERVER,
    Annotation,
    Board,
    Panel,
    Query,
)
from turnmill.observability.dashboards.boards import BOARDS
from turnmill.observability.dashboards.foreign import FOREIGN, JOB_STATE, KUBE_STATE, KUBERAY, PYTHON, VLLM
from turnmill.observability.dashboards.foreign import RAY as RAY_SERIES
from turnmill.observability.dashboards.grafana import to_json
from turnmill.observability.prometheus import RunInfo, RunMetrics
from turnmill.observability.tool_metrics import ToolMetrics
from turnmill_operator import metrics as operator_metrics

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "manifests" / "dashboards"

UNITS = {"none", "short", "percent", "percentunit", "s", "h", "bytes", "mbytes", "Bps", "ops", "reqps", "mwatt"}
OF_TARGETS = {"namespace", "pod", "job", "instance"}
OF_SOURCE = {RUN: {"training_job", "attempt"}, RAY: {"ray_io_cluster"}}
COUNTERS = ("_total", "_bucket", "_count", "_sum")
NO_COUNTERS = {"ray_node_mem_total"}
SHOWN_AS_TOTALS = {"turnmill_token_mismatches_total", "turnmill_store_evicted_keys_total"}
"""Counters that must stay 0, and are therefore shown as totals and not as rates."""

QUERIES = [
    pytest.param(board, panel, query, id=f"{board.name}: {panel.title}: {query.legend}")
    for board in BOARDS
    for panel in board.panels
    for query in panel.queries
]
PANELS = [pytest.param(panel, id=f"{board.name}: {panel.title}") for board in BOARDS for panel in board.panels]
NAMED = [pytest.param(board, id=board.name) for board in BOARDS]

EVENTS = [
    pytest.param(annotation, id=f"{board.name}: {annotation.name}")
    for board in BOARDS
    for annotation in board.annotations
]

every_query = pytest.mark.parametrize(("board", "panel", "query"), QUERIES)
every_panel = pytest.mark.parametrize("panel", PANELS)
every_board = pytest.mark.parametrize("board", NAMED)


def series_of(families: Iterator[Metric]) -> dict[str, set[str]]:
    """Return the series that an exporter serves, each with its labels."""
    found: dict[str, set[str]] = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def run_series() -> dict[str, set[str]]:
    facts = RunInfo("babyai", gpus={("train", "H100"): 8})
    return series_of(RunMetrics(facts, labels={"training_job": "goto", "attempt": "1"}).registry.collect())


def tool_series() -> dict[str, set[str]]:
    metrics = ToolMetrics(("python_code",))
    metrics.store.show([{"used_memory": 1, "maxmemory": 2, "connected_clients": 1, "evicted_keys": 0}])
    return series_of(metrics.registry.collect())


def gateway_series() -> dict[str, set[str]]:
    return series_of(gateway_metrics().registry.collect())


def operator_series() -> dict[str, set[str]]:
    operator_metrics.initialize_series()
    operator_metrics.JOBS.labels("a", "Running")
    operator_metrics.ATTEMPTS.labels("a", "failed")
    operator_metrics.API_REQUESTS.labels("get", "rayjobs", "200")
    return series_of(operator_metrics.REGISTRY.collect())


SERIES = {
    **{name: (RUN, labels) for name, labels in run_series().items()},
    **{name: (TOOL_SERVER, labels) for name, labels in tool_series().items()},
    **{name: (GATEWAY, labels) for name, labels in gateway_series().items()},
    **{name: (RAY, set(labels)) for name, labels in (RAY_SERIES | VLLM).items()},
    **{name: (CLUSTER, set(labels)) for name, labels in (KUBERAY | KUBE_STATE).items()},
    **{name: (JOBS, set(labels)) for name, labels in JOB_STATE.items()},
    **{name: (OPERATOR, set(labels)) for name, labels in PYTHON.items()},
    **{name: (OPERATOR, labels) for name, labels in operator_series().items()},
}


def test_the_committed_dashboards_are_up_to_date():
    written = {path.name: path.read_text() for path in FOLDER.iterdir()}
    in_chart = {path.name: path.read_text() for path in (ROOT / "charts/turnmill/files/dashboards").iterdir()}

    assert written == in_chart == {f"{board.name}.json": to_json(board) for board in BOARDS}


# ---- queries ----


@pytest.mark.parametrize("annotation", EVENTS)
def test_events_are_of_existing_series_with_the_variables_of_their_source(annotation: Annotation):
    for name, labels in promql.reads(annotation.expression).selectors:
        source, own = SERIES[name]
        assert set(source.labels) <= labels <= own | OF_TARGETS | OF_SOURCE.get(source, set())


@every_query
def test_queries_use_existing_series_and_labels(board: Board, panel: Panel, query: Query):
    asked = promql.reads(query.expression)

    assert asked.names <= set(SERIES)
    known = [SERIES[name][1] | OF_TARGETS | OF_SOURCE.get(SERIES[name][0], set()) for name in asked.names]
    assert asked.labels <= set.union(*known)
    for name, labels in asked.selectors:
        source, own = SERIES[name]
        assert labels <= own | OF_TARGETS | OF_SOURCE.get(source, set())


@every_query
def test_queries_are_filtered_by_the_variables_of_their_series(board: Board, panel: Panel, query: Query):
    for name, labels in promql.reads(query.expression).selectors:
        source = SERIES[name][0]

        assert labels >= set(source.labels)
        assert source in board.sources


@every_query
def test_counters_are_read_as_rates_and_gauges_are_not(board: Board, panel: Panel, query: Query):
    asked = promql.reads(query.expression)

    counters = {name for name in asked.names if name.endswith(COUNTERS)} - NO_COUNTERS
    assert asked.counted <= counters
    assert counters - asked.counted <= SHOWN_AS_TOTALS
    assert asked.quantiles_without_le == 0


@every_query
def test_a_rate_takes_its_range_from_a_variable(board: Board, panel: Panel, query: Query):
    ranges = set(re.findall(r"\[([^\]:]+)", query.expression))

    assert ranges <= {"$__rate_interval", "$window", "$__range"}


@every_query
def test_a_legend_names_labels_that_the_result_has(board: Board, panel: Panel, query: Query):
    named = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
    asked = promql.reads(query.expression)

    of_series = set.union(*(SERIES[name][1] | OF_TARGETS | {"training_job"} for name in asked.names))
    assert named <= (asked.labels or of_series)


@every_query
def test_runs_of_the_same_name_in_several_teams_are_distinguished(board: Board, panel: Panel, query: Query):
    groups = [set(labels.split(", ")) for labels in re.findall(r"by \(([^)]*)\)", query.expression)]
    named = set(re.findall(r"\{\{(\w+)\}\}", query.legend))

    assert [group for group in [*groups, named] if "training_job" in group and "namespace" not in group] == []


# ---- panels ----


@every_panel
def test_a_panel_has_a_unit_and_a_description_of_one_sentence(panel: Panel):
    assert panel.title
    assert re.fullmatch(r"[A-Z0-9].+\.", panel.description)
    assert panel.unit in UNITS or panel.unit.startswith("suffix: ")


@every_panel
def test_the_legends_of_a_panel_are_unique(panel: Panel):
    legends = [query.legend for query in panel.queries]

    assert len(set(legends)) == len(legends)


# ---- boards ----


@every_board
def test_a_board_declares_exactly_the_variables_that_it_uses(board: Board):
    drawn = json.loads(to_json(board))

    known = {variable["name"] for variable in drawn["templating"]["list"]}
    used = set().union(*(promql.variables_in(query.expression) for panel in board.panels for query in panel.queries))
    assert known == {name for name in used if not name.startswith("__")} | {"datasource"}


@every_board
def test_every_panel_uses_the_selected_data_source(board: Board):
    drawn = json.loads(to_json(board))

    panels = [panel for panel in drawn["panels"] if panel["type"] != "row"]
    sources = [panel["datasource"] for panel in panels]
    sources += [target["datasource"] for panel in panels for target in panel["targets"]]
    sources += [v["datasource"] for v in drawn["templating"]["list"] if v["type"] == "query"]
    assert {(source["type"], source["uid"]) for source in sources} == {("prometheus", "${datasource}")}


@every_board
def test_panels_do_not_overlap(board: Board):
    places = [panel["gridPos"] for panel in json.loads(to_json(board))["panels"]]

    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_board_titles_are_unique():
    drawn = [json.loads(to_json(board)) for board in BOARDS]

    assert len({board["uid"] for board in drawn}) == len({board["title"] for board in drawn}) == len(BOARDS)


def test_every_metric_of_turnmill_is_on_a_board():
    drawn = {name for _, _, query in (q.values for q in QUERIES) for name in promql.reads(query.expression).names}

    ours = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in SERIES}
    shown = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in drawn}
    assert {name for name in ours - shown if name.startswith("turnmill_")} == set()


# ---- series of others ----


def test_the_documentation_lists_every_third_party_series():
    text = (ROOT / "docs" / "metrics.md").read_text()

    assert [name for name in FOREIGN if f"`{name.removesuffix('_bucket')}`" not in text] == []


def source_of(module: str) -> str:
    """Return the source of an installed module, without importing it."""
    folder, _, rest = module.partition(".")
    found = util.find_spec(folder)
    assert found is not None
    assert found.submodule_search_locations
    return Path(found.submodule_search_locations[0], *rest.split(".")).with_suffix(".py").read_text()


def words_of(module: str) -> set[str]:
    """Return every word in the strings of an installed module."""
    strings = (n.value for n in ast.walk(ast.parse(source_of(module))) if isinstance(n, ast.Constant))
    return {word for text in strings if isinstance(text, str) for word in re.findall(r"[\w:]+", text)}


@pytest.mark.parametrize("name", RAY_SERIES)
def test_ray_as_installed_serves_its_series(name: str):
    told = words_of("ray.dashboard.modules.reporter.reporter_agent")
    shown = words_of("ray.dashboard.modules.metrics.dashboards.default_dashboard_panels")

    assert name.removeprefix("ray_") in told or name in shown


@pytest.mark.parametrize("name", VLLM)
def test_vllm_as_installed_serves_its_series(name: str):
    bare = "vllm:" + name.removeprefix("ray_vllm_").removesuffix("_total").removesuffix("_bucket")

    assert bare in words_of("vllm.v1.metrics.loggers")


def test_vllm_has_the_class_that_exports_engine_metrics_to_ray():
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    (group,) = (group for group in points if group.startswith("vllm."))

    module, _, name = points[group]["ray"].partition(":")
    classes = {node.name for node in ast.walk(ast.parse(source_of(module))) if isinstance(node, ast.ClassDef)}
    assert name in classes
    assert f'"{group}"' in source_of("vllm.plugins.__init__")
