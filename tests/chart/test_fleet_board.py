"""The board of the fleet: its table, and the numbers that Prometheus calculates for two runs."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import promql
from support.programs import find_program, why_no_program
from turnmill.observability.dashboards import fleet
from turnmill.observability.dashboards.board import Query
from turnmill.observability.dashboards.grafana import to_json

PRICE = "2.5"
GOTO, CODE = 'namespace="a", training_job="goto"', 'namespace="b", training_job="code"'
MINUTES = 60
# Of a minute's 60 s: goto waits 30 s for tools, code 7.5 s for tools and 7.5 s for weights.
SERIES = {
    f'turnmill_gpus{{{GOTO}, role="train", accelerator="H100"}}': "8x60",
    f'turnmill_gpus{{{GOTO}, role="rollout", accelerator="A40"}}': "2x60",
    f'turnmill_gpus{{{CODE}, role="train", accelerator="H100"}}': "4x60",
    f'turnmill_step_part_seconds_total{{{GOTO}, part="generation"}}': "0+30x60",
    f'turnmill_step_part_seconds_total{{{GOTO}, part="tools"}}': "0+30x60",
    f'turnmill_step_part_seconds_total{{{CODE}, part="learning"}}': "0+45x60",
    f'turnmill_step_part_seconds_total{{{CODE}, part="tools"}}': "0+7.5x60",
    f'turnmill_step_part_seconds_total{{{CODE}, part="weight_sync"}}': "0+7.5x60",
    f'turnmill_step{{{GOTO}, attempt="1"}}': "5x60",
    f'turnmill_step{{{GOTO}, attempt="2"}}': "7x60",
    f'turnmill_episodes_total{{{GOTO}, stop_reason="completed"}}': "0+90x60",
    f'turnmill_episodes_total{{{GOTO}, stop_reason="failed"}}': "0+30x60",
    f'turnmill_episode_failures_total{{{GOTO}, cause="environment"}}': "0+30x60",
    f'turnmill_job_state{{{GOTO}, state="Queued"}}': "0x60",
    f'turnmill_job_state{{{GOTO}, state="Running"}}': "1x60",
    f'turnmill_job_state{{{CODE}, state="Queued"}}': "1x60",
    f'turnmill_job_state{{{CODE}, state="Running"}}': "0x60",
    f"turnmill_job_attempts{{{GOTO}}}": "2x60",
}
QUERIES = {(panel.title, query.legend): query for panel in fleet.BOARD.panels for query in panel.queries}
OF_GOTO, OF_CODE = f"{{{GOTO}}}", f"{{{CODE}}}"
EXPECTED: dict[tuple[str, str], dict[str, float]] = {
    ("Runs", "step"): {OF_GOTO: 7},
    ("Runs", "trajectories"): {OF_GOTO: 2},
    ("Runs", "failed"): {OF_GOTO: 0.25},
    ("Runs", "idle"): {OF_GOTO: 0.5, OF_CODE: 0.25},
    ("Runs", "GPUs"): {OF_GOTO: 10, OF_CODE: 4},
    ("Runs", "GPU hours"): {OF_GOTO: 10 * 30 / 60, OF_CODE: 4 * 30 / 60},
    ("Runs", "cost"): {OF_GOTO: 10 * 30 / 60 * 2.5, OF_CODE: 4 * 30 / 60 * 2.5},
    ("States", "{{namespace}}/{{training_job}}"): {OF_GOTO: 3, OF_CODE: 1},
    ("All jobs", "attempts"): {OF_GOTO: 2},
    ("Cost", "cost"): {"{}": 14 * 30 / 60 * 2.5},
    ("Cost of idle GPUs", "cost"): {"{}": (10 * 0.5 + 4 * 0.25) * 30 / 60 * 2.5},
    ("Idle GPU hours by cause", "{{part}}"): {
        '{part="tools"}': (10 * 0.5 + 4 * 0.125) * 30 / 60,
        '{part="weight_sync"}': 4 * 0.125 * 30 / 60,
    },
    ("Idle GPUs by cause", "{{part}}"): {'{part="tools"}': 10 * 0.5 + 4 * 0.125, '{part="weight_sync"}': 4 * 0.125},
}


def require_values(folder: Path, series: Mapping[str, str], tests: list[dict[str, Any]]) -> None:
    """Have promtool evaluate expressions on series of a sample a minute."""
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    case = {"interval": "1m", "input_series": inputs, "promql_expr_test": tests}
    file = folder / "tests.yaml"
    # Fuzzy: up to the last digits of a sum.
    file.write_text(yaml.safe_dump({"fuzzy_compare": True, "evaluation_interval": "1m", "tests": [case]}))

    command = [str(find_program("promtool")), "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(why_no_program("promtool") is not None, reason=why_no_program("promtool") or "")
def test_prometheus_calculates_what_runs_cost_and_why_their_gpus_idle(tmp_path: Path):
    tests = [
        {
            "expr": promql.with_values(QUERIES[key].expression, window="5m", price=PRICE, __range="30m"),
            "eval_time": f"{MINUTES - 1}m",
            "exp_samples": [{"labels": labels, "value": value} for labels, value in expected.items()],
        }
        for key, expected in EXPECTED.items()
    ]

    require_values(tmp_path, SERIES, tests)


# Attempt 2 begins in minute 9, after a checkpoint in minute 5; the job is tried again in between.
OF_EVENTS = {
    f'turnmill_attempt{{{GOTO}, instance="a"}}': "1x8",
    f'turnmill_attempt{{{GOTO}, instance="b"}}': "_x9 2x30",
    f"turnmill_checkpoint_age_seconds{{{GOTO}}}": "0 60 120 180 240 0 60 120 180",
    f'turnmill_job_state{{{GOTO}, state="Running"}}': "1x8 0x0 1x30",
    f'turnmill_job_state{{{GOTO}, state="Retrying"}}': "0x8 1x0 0x30",
}
EXPECTED_EVENTS = {"Attempts": [0, 9], "Checkpoints": [5], "Failures": [9]}


@pytest.mark.skipif(why_no_program("promtool") is not None, reason=why_no_program("promtool") or "")
def test_marks_stand_where_attempts_begin_checkpoints_are_written_and_jobs_fail(tmp_path: Path):
    tests = [
        {
            "expr": f"count({promql.with_values(annotation.expression)}) or vector(0)",
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": "{}", "value": 1 if minute in EXPECTED_EVENTS[annotation.name] else 0}],
        }
        for annotation in fleet.BOARD.annotations
        for minute in range(15)
    ]

    require_values(tmp_path, OF_EVENTS, tests)


def drawn() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(to_json(fleet.BOARD))
    return found


def test_the_table_has_a_column_with_a_unit_per_query_and_leads_to_each_run():
    (table,) = [panel for panel in drawn()["panels"] if (panel["type"], panel["title"]) == ("table", "Runs")]
    queries: list[Query] = [query for (title, _), query in QUERIES.items() if title == "Runs"]

    assert {(target["format"], target["instant"]) for target in table["targets"]} == {("table", True)}
    merge, organize = table["transformations"]
    assert merge["id"] == "merge"
    renamed = organize["options"]["renameByName"]
    assert [renamed[f"Value #{target['refId']}"] for target in table["targets"]] == [query.legend for query in queries]
    overrides = {found["matcher"]["options"]: found["properties"] for found in table["fieldConfig"]["overrides"]}
    assert {name: overrides[name] for name in renamed.values()} == {
        query.legend: [{"id": "unit", "value": query.unit}] for query in queries
    }
    ((link,),) = [found["value"] for found in overrides["training_job"]]
    assert link["url"].startswith("/d/turnmill-rollout?var-namespace=${__data.fields.namespace}&var-training_job=")


def test_rows_of_the_table_are_runs_and_nothing_finer():
    queries = [query for (title, _), query in QUERIES.items() if title == "Runs"]

    # Another label would make a row of its own of what belongs to a run.
    assert {group for query in queries for group in promql.reads(query.expression).labels} == {
        "namespace",
        "training_job",
    }


def test_a_gpu_hour_has_a_price_that_is_entered():
    (price,) = [found for found in drawn()["templating"]["list"] if found["name"] == "price"]

    assert (price["type"], price["query"], price["current"]["value"]) == ("textbox", "1", "1")
