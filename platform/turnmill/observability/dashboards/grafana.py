"""Conversion of dashboards to Grafana's JSON, by Grafana's own builders."""

import json

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, statetimeline, timeseries
from grafana_foundation_sdk.builders import table as tables
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from turnmill.observability.dashboards.board import PRICE, WINDOW, Annotation, Board, Panel, Query, Source

PREFIX = "turnmill-"
HEIGHT, NUMBER_HEIGHT = 8, 4
ALL = models.VariableOption(selected=True, text="All", value="$__all")
DATASOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
RUN_LINK = {
    "title": "What it is doing",
    "url": f"/d/{PREFIX}rollout?var-namespace=${{__data.fields.namespace}}"
    "&var-training_job=${__data.fields.training_job}&${datasource:queryparam}&${__url_time_range}",
}
LABELS = {
    "namespace": "Namespace",
    "training_job": "Job",
    "job": "Scrape job",
    "ray_io_cluster": "Ray cluster",
}


Variable = dashboard.QueryVariable | dashboard.CustomVariable | dashboard.TextBoxVariable
Built = timeseries.Panel | stat.Panel | tables.Panel | statetimeline.Panel


def to_json(board: Board) -> str:
    """Return the dashboard as Grafana imports it."""
    return json.dumps(build(board), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def build(board: Board) -> models.Dashboard:
    """Build the dashboard with Grafana's classes."""
    built = (
        dashboard.Dashboard(board.title)
        .uid(f"{PREFIX}{board.name}")
        .description(board.description)
        .tags(["turnmill"])
        .readonly()
        .refresh("30s")
        .time("now-6h", "now")
        .timezone("browser")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(_links())
        .with_variable(_datasource_variable())
    )
    for variable in _variables(board):
        built = built.with_variable(variable)
    for annotation in board.annotations:
        built = built.annotation(_annotation(annotation))
    for row in board.rows:
        built = built.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            built = built.with_panel(_panel(panel))
    return _numbered(built.build())


def _annotation(annotation: Annotation) -> dashboard.AnnotationQuery:
    built = dashboard.AnnotationQuery().name(annotation.name).expr(annotation.expression)
    return built.datasource(DATASOURCE).enable(True).icon_color(annotation.color)


def _numbered(built: models.Dashboard) -> models.Dashboard:
    # Grafana numbers panels when it saves; a provisioned board is never saved.
    for number, panel in enumerate(built.panels or [], start=1):
        panel.id_val = number
    return built


def _links() -> dashboard.DashboardLink:
    return (
        dashboard.DashboardLink("turnmill")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags(["turnmill"])
        .as_dropdown(True)
        .include_vars(True)
        .keep_time(True)
    )


def _datasource_variable() -> dashboard.DatasourceVariable:
    current = models.VariableOption(selected=True, text="default", value="default")
    return dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus").current(current)


def _variables(board: Board) -> list[Variable]:
    anchors: dict[str, Source] = {}
    for source in board.sources:
        for label in source.labels:
            anchors.setdefault(label, source)
    variables: list[Variable] = [_label_variable(label, source) for label, source in anchors.items()]
    if _reads(board, WINDOW):
        variables.append(_window_variable())
    if _reads(board, PRICE):
        variables.append(_price_variable())
    return variables


def _reads(board: Board, variable: str) -> bool:
    return any(variable in query.expression for panel in board.panels for query in panel.queries)


def _label_variable(label: str, source: Source) -> dashboard.QueryVariable:
    # Those before it narrow the choice.
    before = source.labels[: source.labels.index(label)]
    matchers = ", ".join(f'{name}=~"${name}"' for name in before)
    query = (
        f"label_values({source.anchor}{{{matchers}}}, {label})" if before else f"label_values({source.anchor}, {label})"
    )
    return (
        dashboard.QueryVariable(label)
        .label(LABELS[label])
        .datasource(DATASOURCE)
        .query({"query": query, "refId": label})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        # Series that lack the label count as well: a machine of one's own has no namespaces.
        .all_value(".*")
        .current(ALL)
    )


def _window_variable() -> dashboard.CustomVariable:
    current = models.VariableOption(selected=True, text="15m", value="15m")
    return (
        dashboard.CustomVariable("window")
        .label("Rates over")
        .description("Longer than a step: the counters of a run grow once per step.")
        .values("5m,15m,1h,6h")
        .current(current)
    )


def _price_variable() -> dashboard.TextBoxVariable:
    return (
        dashboard.TextBoxVariable("price")
        .label("Price of a GPU hour")
        .description("In your currency, for all kinds of GPU; with 1, costs are GPU hours.")
        .default_value("1")
        .current(models.VariableOption(selected=True, text="1", value="1"))
    )


def _panel(panel: Panel) -> Built:
    built: Built
    match panel.kind:
        case "number":
            built = stat.Panel()
        case "table":
            built = _table(panel)
        case "lines" | "stacked":
            built = _lines(panel)
        case "states":
            built = _states(panel)
    height = NUMBER_HEIGHT if panel.kind == "number" else HEIGHT
    built = built.title(panel.title).description(panel.description).unit(panel.unit).datasource(DATASOURCE)
    built = built.span(panel.width).height(height)
    if panel.max is not None:
        built = built.min(0).max(panel.max)
    if panel.alarming_from is not None:
        built = built.thresholds(_thresholds(panel.alarming_from))
    for number, query in enumerate(panel.queries):
        target = prometheus.Dataquery().expr(query.expression).legend_format(query.legend).ref_id(_ref_id(number))
        target = target.range() if panel.kind in ("lines", "stacked", "states") else target.instant()
        if panel.kind == "table":
            target = target.format(PromQueryFormat.TABLE)
        built = built.with_target(target.datasource(DATASOURCE))
    return built


def _lines(panel: Panel) -> timeseries.Panel:
    legend = common.VizLegendOptions().display_mode(common_models.LegendDisplayMode.LIST).show_legend(True)
    built = timeseries.Panel().legend(legend.placement(common_models.LegendPlacement.BOTTOM))
    built = built.fill_opacity(60 if panel.kind == "stacked" else 8).line_width(1)
    if panel.kind == "stacked":
        built = built.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    return built.tooltip(
        common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI).sort(common_models.SortOrder.DESCENDING)
    )


def _states(panel: Panel) -> statetimeline.Panel:
    """Return bars over time, with the name and the colour of each value."""
    results = {
        str(value): models.ValueMappingResult(text=name, color=color, index=value)
        for value, (name, color) in enumerate(panel.states)
    }
    return statetimeline.Panel().mappings([models.ValueMap(options=results)]).row_height(0.8)


def _ref_id(number: int) -> str:
    return chr(ord("A") + number)


def _table(panel: Panel) -> tables.Panel:
    """Return a table with the results of its queries side by side, joined by their labels."""
    columns = {f"Value #{_ref_id(number)}": query.legend for number, query in enumerate(panel.queries)}
    order = {name: position for position, name in enumerate(("namespace", "training_job", *columns))}
    organized = {"excludeByName": {"Time": True}, "renameByName": columns, "indexByName": order}
    built = tables.Panel().filterable(True)
    built = built.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    built = built.with_transformation(models.DataTransformerConfig(id_val="organize", options=organized))
    for query in panel.queries:
        built = built.override_by_name(query.legend, _unit(panel, query))
    return built.override_by_name("training_job", [models.DynamicConfigValue("links", [RUN_LINK])])


def _unit(panel: Panel, query: Query) -> list[models.DynamicConfigValue]:
    return [models.DynamicConfigValue("unit", query.unit or panel.unit)]


def _thresholds(alarming_from: float) -> dashboard.ThresholdsConfig:
    steps = [models.Threshold(color="green", value=None), models.Threshold(color="red", value=alarming_from)]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)
