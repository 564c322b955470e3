"""The alerts: when each of them fires and when not, and their runbooks."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import promql
from support.programs import find_program, why_no_program
from turnmill.gateway.instrumentation import gateway_metrics
from turnmill.observability.dashboards.foreign import PYTHON
from turnmill.observability.prometheus import RunInfo, RunMetrics
from turnmill.observability.tool_metrics import ToolMetrics
from turnmill_operator import metrics as operator_metrics

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "manifests" / "alerts").glob("*.yaml"))
RULES = {file.name: yaml.safe_load(file.read_text()) for file in FILES}
ALERTS: dict[str, dict[str, Any]] = {
    rule["alert"]: rule for rules in RULES.values() for group in rules["spec"]["groups"] for rule in group["rules"]
}

needs_promtool = pytest.mark.skipif(why_no_program("promtool") is not None, reason=why_no_program("promtool") or "")
every_alert = pytest.mark.parametrize("alert", ALERTS)


@dataclass(frozen=True)
class Case:
    """Series with a value per minute in promtool's notation, and whether the alert fires."""

    alert: str
    what: str
    fires: bool
    series: dict[str, str]
    minutes: int


RUN = 'namespace="a", training_job="goto"'


def fires(alert: str, what: str, series: dict[str, str], *, minutes: int = 45) -> Case:
    return Case(alert, what, True, series, minutes)


def silent(alert: str, what: str, series: dict[str, str], *, minutes: int = 45) -> Case:
    return Case(alert, what, False, series, minutes)


def named(metric: str, labels: str = "") -> str:
    """Return the name of a series with its labels, as a key."""
    return f"{metric}{{{labels}}}"


AGE = named("turnmill_progress_age_seconds", RUN)
STALL = {named("turnmill_stall_timeout_seconds", RUN): "600x60"}
ENDED = named("turnmill_episodes_total", f'{RUN}, stop_reason="completed"')
BROKEN = named("turnmill_episodes_total", f'{RUN}, stop_reason="failed"')
LIMIT = {named("turnmill_failed_ratio_limit", RUN): "0.2x60"}
LOST = named("turnmill_episode_failures_total", f'{RUN}, cause="tool_connection"')
AT_FAULT = named("turnmill_episode_failures_total", f'{RUN}, cause="reward"')
CHECKPOINT = named("turnmill_checkpoint_age_seconds", RUN)
PACE = {
    named("turnmill_checkpoint_interval_steps", RUN): "10x60",
    named("turnmill_step_seconds_sum", RUN): "0+60x60",
    named("turnmill_step_seconds_count", RUN): "0+1x60",
}
GPUS = named("turnmill_gpus", f'{RUN}, role="train", accelerator="H100"')
GENERATION = named("turnmill_step_part_seconds_total", f'{RUN}, part="generation"')
STRAGGLERS = named("turnmill_step_part_seconds_total", f'{RUN}, part="stragglers"')

POD = 'namespace="a", pod="tool-server-0"'
QUICK = named("turnmill_tool_queue_seconds_bucket", f'{POD}, le="0.5"')
SLOW = named("turnmill_tool_queue_seconds_bucket", f'{POD}, le="5"')
ALL = named("turnmill_tool_queue_seconds_bucket", f'{POD}, le="+Inf"')
RUNNING = named("turnmill_sandbox_runs_in_flight", POD)
PLACES = {named("turnmill_sandbox_runs_limit", POD): "64x60"}
DONE_CALLS = named("turnmill_tool_calls_total", f'{POD}, tool="sql", outcome="done"')
FAILED_CALLS = named("turnmill_tool_calls_total", f'{POD}, tool="sql", outcome="failed"')
ANSWERED = named("turnmill_gateway_requests_total", f'{POD}, api="messages", status="200"')
REFUSED = named("turnmill_gateway_requests_total", f'{POD}, api="messages", status="400"')
BROKEN_REQUESTS = named("turnmill_gateway_requests_total", f'{POD}, api="messages", status="503"')
FAULTS = named("turnmill_tool_calls_total", f'{POD}, tool="sql", outcome="tool_error"')
RUNS = named("turnmill_sandbox_runs_total", POD)
KILLS = named("turnmill_sandbox_kills_total", f'{POD}, limit="memory"')

UP = named("turnmill_store_up", POD)
UP_FOR_OTHER = named("turnmill_store_up", 'namespace="a", pod="tool-server-1"')
MEMORY = named("turnmill_store_memory_bytes", POD)
MEMORY_LIMIT = named("turnmill_store_memory_limit_bytes", POD)
EVICTED = named("turnmill_store_evicted_keys_total", POD)
AOF = named("turnmill_store_aof_failing", POD)
QUICK_STORE = named("turnmill_store_operation_seconds_bucket", f'{POD}, operation="begin", le="0.01"')
ALL_STORE = named("turnmill_store_operation_seconds_bucket", f'{POD}, operation="begin", le="1"')
INF_STORE = named("turnmill_store_operation_seconds_bucket", f'{POD}, operation="begin", le="+Inf"')

FIRST, SECOND = 'job="operator", instance="1", pod="o-1"', 'job="operator", instance="2", pod="o-2"'
LEADS, FOLLOWS = named("turnmill_operator_leader", FIRST), named("turnmill_operator_leader", SECOND)
QUEUE = named("turnmill_operator_queue_age_seconds", FIRST)
LIST_AGE = named("turnmill_operator_last_list_age_seconds", FIRST)
MISSED = named("turnmill_operator_missed_events_total", f'{FIRST}, resource="rayjobs"')
ERRORS = named("turnmill_operator_errors_total", f'{FIRST}, reason="server"')
RESIDENT = named("process_resident_memory_bytes", FIRST)
RESIDENT_ELSEWHERE = named("process_resident_memory_bytes", 'job="grafana", instance="9", pod="g"')
FAILED_ATTEMPTS = named("turnmill_operator_attempts_total", f'{FIRST}, namespace="a", outcome="failed"')
WHOLE_ATTEMPTS = named("turnmill_operator_attempts_total", f'{FIRST}, namespace="a", outcome="complete"')


MISMATCHES = named("turnmill_token_mismatches_total", RUN)
DIFFERENCE = named("turnmill_rollout_probability_difference", RUN)
STALENESS = named("turnmill_staleness_steps", RUN)

CASES = (
    fires(
        "TurnmillRunHangs", "nothing for half of the time that it may stand still", {AGE: "0+60x60"} | STALL, minutes=7
    ),
    silent(
        "TurnmillRunHangs", "a phase of four minutes", {AGE: "0 60 120 180 240 0 60 120 180 240 0"} | STALL, minutes=9
    ),
    fires("TurnmillFailedRatioNearLimit", "15 of 100, 20 allowed", {ENDED: "0+85x60", BROKEN: "0+15x60"} | LIMIT),
    silent("TurnmillFailedRatioNearLimit", "5 of 100, 20 allowed", {ENDED: "0+95x60", BROKEN: "0+5x60"} | LIMIT),
    silent("TurnmillFailedRatioNearLimit", "nothing has ended yet", {ENDED: "0x60", BROKEN: "0x60"} | LIMIT),
    fires("TurnmillTokensNotSampled", "one token", {MISMATCHES: "0x30 1x30"}),
    silent("TurnmillTokensNotSampled", "none", {MISMATCHES: "0x60"}),
    fires("TurnmillEngineDisagrees", "for half an hour", {DIFFERENCE: "0.2x60"}),
    silent("TurnmillEngineDisagrees", "as half precision does", {DIFFERENCE: "0.01x60"}),
    silent("TurnmillEngineDisagrees", "before the first step", {DIFFERENCE: "stale"}),
    fires("TurnmillPolicyStale", "five steps", {STALENESS: "5x60"}),
    silent("TurnmillPolicyStale", "one step", {STALENESS: "1x60"}),
    fires("TurnmillCheckpointOld", "an hour, ten minutes are usual", {CHECKPOINT: "0+60x90"} | PACE, minutes=58),
    silent(
        "TurnmillCheckpointOld",
        "ten minutes, as usual",
        {CHECKPOINT: "0+60x10 0+60x10 0+60x10 0+60x10"} | PACE,
        minutes=40,
    ),
    silent("TurnmillCheckpointOld", "25 minutes, at a quick pace", {CHECKPOINT: "0+60x25"} | PACE, minutes=24),
    fires(
        "TurnmillGpusIdle",
        "stragglers take 80 %",
        {GPUS: "8x99", GENERATION: "0+12x99", STRAGGLERS: "0+48x99"},
        minutes=90,
    ),
    silent(
        "TurnmillGpusIdle",
        "stragglers take 20 %",
        {GPUS: "8x99", GENERATION: "0+48x99", STRAGGLERS: "0+12x99"},
        minutes=90,
    ),
    silent(
        "TurnmillGpusIdle", "there are none", {GPUS: "0x99", GENERATION: "0+12x99", STRAGGLERS: "0+48x99"}, minutes=90
    ),
    fires("TurnmillToolServersSaturated", "seconds", {QUICK: "0+10x60", SLOW: "0+100x60", ALL: "0+100x60"}),
    silent("TurnmillToolServersSaturated", "moments", {QUICK: "0+100x60", SLOW: "0+100x60", ALL: "0+100x60"}),
    fires("TurnmillSandboxesFull", "as many wait as run", {RUNNING: "128x60"} | PLACES),
    silent("TurnmillSandboxesFull", "all are taken and none waits", {RUNNING: "64x60"} | PLACES),
    fires("TurnmillToolServersUnreachable", "one trajectory per minute", {LOST: "0+1x60"}),
    silent("TurnmillToolServersUnreachable", "what fails is the reward", {LOST: "0x60", AT_FAULT: "0+1x60"}),
    fires("TurnmillToolCallsFail", "5 of 100", {DONE_CALLS: "0+95x60", FAILED_CALLS: "0+5x60"}),
    silent("TurnmillToolCallsFail", "1 of 1000", {DONE_CALLS: "0+999x60", FAILED_CALLS: "0+1x60"}),
    fires("TurnmillGatewayFails", "10 of 100", {ANSWERED: "0+90x60", BROKEN_REQUESTS: "0+10x60"}),
    silent("TurnmillGatewayFails", "1 of 100", {ANSWERED: "0+99x60", BROKEN_REQUESTS: "0+1x60"}),
    silent("TurnmillGatewayFails", "mistakes of agents", {ANSWERED: "0+50x60", REFUSED: "0+50x60"}),
    fires("TurnmillToolFaulty", "once a minute", {FAULTS: "0+1x60"}),
    silent("TurnmillToolFaulty", "once", {FAULTS: "0x30 1x30"}),
    fires("TurnmillSandboxKillsBurst", "half of the runs", {RUNS: "0+20x60", KILLS: "0+10x60"}),
    silent("TurnmillSandboxKillsBurst", "1 of 20 runs", {RUNS: "0+200x60", KILLS: "0+10x60"}),
    silent("TurnmillSandboxKillsBurst", "half of very few runs", {RUNS: "0+2x60", KILLS: "0+1x60"}),
    fires("TurnmillStoreUnreachable", "for one of two servers", {UP: "0x60", UP_FOR_OTHER: "1x60"}),
    silent("TurnmillStoreUnreachable", "a restart", {UP: "1x10 0 1x40", UP_FOR_OTHER: "1x60"}, minutes=11),
    fires("TurnmillStoreMemoryHigh", "90 %", {MEMORY: "90x60", MEMORY_LIMIT: "100x60"}),
    silent("TurnmillStoreMemoryHigh", "80 %", {MEMORY: "80x60", MEMORY_LIMIT: "100x60"}),
    silent("TurnmillStoreMemoryHigh", "no limit", {MEMORY: "90x60", MEMORY_LIMIT: "0x60"}),
    fires("TurnmillStoreEvicts", "a key", {EVICTED: "0x40 1x20"}),
    silent("TurnmillStoreEvicts", "none", {EVICTED: "0x60"}),
    fires("TurnmillStoreNotDurable", "the disk is full", {AOF: "1x60"}),
    silent("TurnmillStoreNotDurable", "the disk is well", {AOF: "0x60"}),
    fires("TurnmillStoreSlow", "half a second", {QUICK_STORE: "0+10x60", ALL_STORE: "0+99x60", INF_STORE: "0+99x60"}),
    silent("TurnmillStoreSlow", "milliseconds", {QUICK_STORE: "0+99x60", ALL_STORE: "0+99x60", INF_STORE: "0+99x60"}),
    fires("TurnmillOperatorNoLeader", "two replicas, none leads", {LEADS: "0x60", FOLLOWS: "0x60"}),
    fires("TurnmillOperatorNoLeader", "no replica answers", {RESIDENT_ELSEWHERE: "1x60"}),
    silent("TurnmillOperatorNoLeader", "one of two leads", {LEADS: "1x60", FOLLOWS: "0x60"}),
    silent("TurnmillOperatorNoLeader", "a change of leaders", {LEADS: "1x40 0x20", FOLLOWS: "0x41 1x19"}, minutes=42),
    fires("TurnmillOperatorStuck", "the oldest waits ever longer", {QUEUE: "0+60x60"}),
    silent("TurnmillOperatorStuck", "the oldest waits a few seconds", {QUEUE: "5x60"}),
    fires("TurnmillOperatorBlind", "no listing for a quarter of an hour", {LIST_AGE: "900x60", MISSED: "0x60"}),
    fires("TurnmillOperatorBlind", "a listing found what no watch told", {LIST_AGE: "60x60", MISSED: "0x40 1x20"}),
    silent("TurnmillOperatorBlind", "watches tell everything", {LIST_AGE: "250x60", MISSED: "0x60"}),
    fires("TurnmillOperatorErrors", "two a minute", {ERRORS: "0+2x60"}),
    silent("TurnmillOperatorErrors", "two in all", {ERRORS: "0x40 2x20"}),
    fires("TurnmillOperatorMemory", "300 MB", {LEADS: "1x60", RESIDENT: "300000000x60"}),
    silent("TurnmillOperatorMemory", "100 MB", {LEADS: "1x60", RESIDENT: "100000000x60"}),
    silent("TurnmillOperatorMemory", "another program's", {LEADS: "1x60", RESIDENT_ELSEWHERE: "300000000x60"}),
    fires(
        "TurnmillAttemptsFail",
        "one every five minutes",
        {FAILED_ATTEMPTS: "0x5 1x5 2x5 3x5 4x5 5x5 6x5 7x5"},
        minutes=44,
    ),
    silent("TurnmillAttemptsFail", "all complete", {FAILED_ATTEMPTS: "0x60", WHOLE_ATTEMPTS: "0+1x60"}),
)


@pytest.fixture(scope="module")
def rule_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the rule files in Prometheus' own format."""
    folder = tmp_path_factory.mktemp("rules")
    for name, rules in RULES.items():
        (folder / name).write_text(yaml.safe_dump(rules["spec"]))
    return [folder / name for name in RULES]


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = find_program("promtool")
    assert program is not None
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)


@needs_promtool
def test_promtool_accepts_the_rules(rule_files: list[Path]):
    checked = promtool("check", "rules", "--lint=all", "--lint-fatal", *rule_files)

    assert checked.returncode == 0, checked.stdout + checked.stderr


@needs_promtool
def test_alerts_fire_only_when_they_should(rule_files: list[Path], tmp_path: Path):
    tests = [
        {
            "name": f"{case.alert}: {case.what}",
            "interval": "1m",
            "input_series": [{"series": series, "values": values} for series, values in case.series.items()],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertname="{case.alert}", alertstate="firing"}}) or vector(0)',
                    "eval_time": f"{case.minutes}m",
                    "exp_samples": [{"labels": "{}", "value": int(case.fires)}],
                }
            ],
        }
        for case in CASES
    ]
    file = tmp_path / "alerts.yaml"
    file.write_text(yaml.safe_dump({"rule_files": list(map(str, rule_files)), "tests": tests}))

    done = promtool("test", "rules", file)

    assert done.returncode == 0, done.stdout + done.stderr


@every_alert
def test_every_alert_is_tested_firing_and_not_firing(alert: str):
    assert {case.fires for case in CASES if case.alert == alert} == {True, False}


@every_alert
def test_an_alert_has_a_severity_a_description_and_a_runbook(alert: str):
    rule = ALERTS[alert]

    assert rule["labels"]["severity"] in ("warning", "critical")
    assert all(text.endswith(".") for text in (rule["annotations"]["summary"], rule["annotations"]["description"]))
    page = ROOT / rule["annotations"]["runbook"]
    text = page.read_text()
    assert f"`{alert}`" in text
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## What it means",
        "## Diagnosis",
        "## What to do",
    ]


@every_alert
def test_alerts_use_existing_series_and_labels(alert: str):
    asked = promql.reads(ALERTS[alert]["expr"])

    series = served()
    assert asked.names <= set(series)
    for name, labels in asked.selectors:
        assert labels <= series[name] | {"namespace", "job", "instance"}
    assert asked.labels <= set.union(*(series[name] for name in asked.names)) | {"namespace", "job", "instance", "pod"}


def test_alerts_of_a_team_can_be_narrowed_to_its_namespace():
    of_team = [rule["expr"] for group in RULES["team.yaml"]["spec"]["groups"] for rule in group["rules"]]

    for expression in of_team:
        assert len(promql.reads(expression).selectors) == expression.count('namespace=~".+"')


@pytest.mark.parametrize(("chart", "name"), [("turnmill", "operator.yaml"), ("turnmill-team", "team.yaml")])
def test_the_charts_contain_the_alerts_unchanged(chart: str, name: str):
    text = (ROOT / "charts" / chart / "files" / "alerts" / name).read_text()

    assert text == (ROOT / "manifests" / "alerts" / name).read_text()


def test_every_runbook_belongs_to_an_alert():
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "runbooks").glob("*.md")}

    assert pages - {"docs/runbooks/README.md"} == {rule["annotations"]["runbook"] for rule in ALERTS.values()}


def test_the_index_of_the_runbooks_names_every_alert():
    text = (ROOT / "docs" / "runbooks" / "README.md").read_text()

    assert set(re.findall(r"`(Turnmill\w+)`", text)) == set(ALERTS)


def served() -> dict[str, set[str]]:
    """Return the series of the exporters, each with its labels."""
    run = RunMetrics(RunInfo("babyai", gpus={("train", "H100"): 8}), labels={"training_job": "goto", "attempt": "1"})
    tools = ToolMetrics(("python_code",))
    tools.store.show([{"used_memory": 1, "maxmemory": 2, "connected_clients": 1, "evicted_keys": 0}])
    operator_metrics.initialize_series()
    operator_metrics.ATTEMPTS.labels("a", "failed")
    found: dict[str, set[str]] = {name: set(labels) for name, labels in PYTHON.items()}
    for registry in (run.registry, tools.registry, gateway_metrics().registry, operator_metrics.REGISTRY):
        for family in registry.collect():
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found
