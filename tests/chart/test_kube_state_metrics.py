"""The configuration of kube-state-metrics for jobs: its paths, states, metrics and labels are those of the project."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from turnmill.jobs.crd import GROUP, VERSION, custom_resource_definition
from turnmill.jobs.job import KIND
from turnmill.observability.dashboards.fleet import STATES
from turnmill.observability.dashboards.foreign import JOB_STATE
from turnmill_operator.status import State

FILE = Path(__file__).parents[2] / "charts" / "turnmill" / "files" / "kube-state-metrics.yaml"
(RESOURCE,) = yaml.safe_load(FILE.read_text())["spec"]["resources"]
METRICS: list[dict[str, Any]] = RESOURCE["metrics"]


def settings(metric: dict[str, Any]) -> dict[str, Any]:
    kind = metric["each"]["type"]
    found: dict[str, Any] = metric["each"][kind[0].lower() + kind[1:]]
    return found


NUMBERS_OF_JOBS = [
    metric for metric in METRICS if metric["each"]["type"] == "Gauge" and settings(metric)["path"][0] == "status"
]


def schema_at(path: list[str]) -> dict[str, Any]:
    """Return the schema of a field of the resource."""
    (version,) = custom_resource_definition()["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    for name in path:
        schema = schema["properties"][name]
    return schema


def test_it_is_of_this_resource():
    assert RESOURCE["groupVersionKind"] == {"group": GROUP, "version": VERSION, "kind": KIND}


def test_every_state_is_reported_and_drawn():
    (states,) = [settings(metric) for metric in METRICS if metric["each"]["type"] == "StateSet"]

    assert states["list"] == list(State) == [name for name, _ in STATES]
    assert schema_at(states["path"])["type"] == "string"


@pytest.mark.parametrize("metric", NUMBERS_OF_JOBS, ids=lambda metric: metric["name"])
def test_every_number_is_a_field_of_the_resource(metric):
    schema = schema_at(settings(metric)["path"])
    assert schema["type"] in ("integer", "number")
    # Without it, kube-state-metrics logs an error for each job that has not got so far.
    assert settings(metric)["nilIsZero"] is True


def test_dashboards_know_its_metrics_and_labels():
    labels = set(RESOURCE["labelsFromPath"])
    prefix = RESOURCE["metricNamePrefix"]
    reported = {
        f"{prefix}_{metric['name']}": labels
        | ({settings(metric)["labelName"]} if "labelName" in settings(metric) else set())
        for metric in METRICS
    }

    assert {name: set(known) for name, known in JOB_STATE.items()} == reported
