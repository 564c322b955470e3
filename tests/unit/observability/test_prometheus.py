import math
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from turnmill.gateway.instrumentation import gateway_metrics
from turnmill.observability.prometheus import GAUGES, PHASES, RunInfo, RunMetrics
from turnmill.observability.tool_metrics import ToolMetrics
from turnmill_operator import metrics as operator_metrics

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"

STEP = {
    "training/global_step": 3,
    "turnmill/episodes/completed": 6.0,
    "turnmill/episodes/max_turns": 2.0,
    "turnmill/failures/EnvironmentDied": 1.0,
    "turnmill/turns": 128.0,
    "turnmill/prompt_tokens": 4000.0,
    "turnmill/response_tokens": 500.0,
    "turnmill/success": 0.75,
    "turnmill/kl_reference": 0.01,
    "actor/entropy": 0.4,
    "training/off_policy/trajectory_staleness/mean": 0.5,
    "timing_s/gen": 2.0,
    "timing_s/step": 5.0,
    "timing_s/stop_profile": 0.1,
    "perf/throughput": 99.0,
}


@pytest.fixture
def metrics() -> Iterator[RunMetrics]:
    with RunMetrics(RunInfo("babyai", steps=60)) as metrics:
        yield metrics


def scrape(port: int) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def value(metrics: RunMetrics, name: str, **labels: str) -> float:
    sample = metrics.registry.get_sample_value(name, labels)
    assert sample is not None
    return sample


def test_a_scrape_shows_the_metrics_of_the_steps(metrics: RunMetrics):
    port = metrics.serve(0)

    metrics.observe_step(STEP)
    metrics.observe_step({**STEP, "training/global_step": 4, "turnmill/success": 0.5})

    samples = scrape(port)
    assert samples[key("turnmill_episodes_total", environment="babyai", stop_reason="completed")] == 12
    assert samples[key("turnmill_episodes_total", environment="babyai", stop_reason="timeout")] == 0
    assert samples[key("turnmill_episode_failures_total", cause="EnvironmentDied")] == 2
    assert samples[key("turnmill_turns_total")] == 256
    assert samples[key("turnmill_tokens_total", kind="prompt")] == 8000
    assert samples[key("turnmill_tokens_total", kind="response")] == 1000
    assert samples[key("turnmill_success_ratio")] == 0.5
    assert samples[key("turnmill_kl_reference")] == 0.01
    assert samples[key("turnmill_policy_entropy")] == 0.4
    assert samples[key("turnmill_staleness_steps")] == 0.5
    assert samples[key("turnmill_phase_seconds_sum", phase="gen")] == 4
    assert samples[key("turnmill_step_seconds_count")] == 2
    assert samples[key("turnmill_step")] == 4
    assert samples[key("turnmill_steps")] == 60


def test_every_series_has_the_labels_of_its_run():
    with RunMetrics(RunInfo("babyai"), labels={"training_job": "goto", "attempt": "2"}) as metrics:
        metrics.observe_step(STEP)
        samples = scrape(metrics.serve(0))

    assert samples[key("turnmill_turns_total", training_job="goto", attempt="2")] == 128
    assert all(("training_job", "goto") in labels for _, labels in samples)


def test_seconds_of_step_parts_and_token_mismatches_are_counted(metrics: RunMetrics):
    for _ in range(2):
        metrics.observe_step({"turnmill/step_parts/tools": 1.5, "turnmill/token_mismatches": 3.0})

    assert value(metrics, "turnmill_step_part_seconds_total", part="tools") == 3
    assert value(metrics, "turnmill_step_part_seconds_total", part="stragglers") == 0
    assert value(metrics, "turnmill_token_mismatches_total") == 6


def test_information_about_the_run_is_served_from_the_start():
    info = RunInfo(
        "babyai", checkpoint_every=10, max_failed_ratio=0.2, stall_timeout_seconds=600, gpus={("train", "H100"): 8}
    )
    allowed: list[float] = []
    metrics = RunMetrics(
        info, seconds_since_progress=lambda: 7.0, allowed_silence=lambda: allowed[0] if allowed else None
    )

    assert value(metrics, "turnmill_gpus", role="train", accelerator="H100") == 8
    assert value(metrics, "turnmill_checkpoint_interval_steps") == 10
    assert value(metrics, "turnmill_failed_ratio_limit") == 0.2
    assert value(metrics, "turnmill_progress_age_seconds") == 7
    assert value(metrics, "turnmill_stall_timeout_seconds") == 600
    allowed.append(3600.0)
    assert value(metrics, "turnmill_stall_timeout_seconds") == 3600


def test_numbers_that_are_not_finite_are_ignored(metrics: RunMetrics):
    metrics.observe_step(STEP)

    metrics.observe_step({"turnmill/turns": math.nan, "turnmill/success": math.nan, "actor/entropy": math.inf})

    assert value(metrics, "turnmill_turns_total") == 128
    assert value(metrics, "turnmill_success_ratio") == 0.75
    assert value(metrics, "turnmill_policy_entropy") == 0.4


def test_a_mean_is_unknown_before_the_first_step(metrics: RunMetrics):
    assert math.isnan(value(metrics, "turnmill_success_ratio"))


def test_unknown_phases_create_no_series(metrics: RunMetrics):
    metrics.observe_step(STEP)

    assert metrics.registry.get_sample_value("turnmill_phase_seconds_count", {"phase": "stop_profile"}) is None


def test_the_age_of_the_checkpoint_grows_until_another_is_saved():
    now = 1000.0
    metrics = RunMetrics(RunInfo("babyai"), clock=lambda: now)

    now = 1030.0
    assert value(metrics, "turnmill_checkpoint_age_seconds") == 30
    metrics.observe_step({"timing_s/save_checkpoint": 0.5})
    assert value(metrics, "turnmill_checkpoint_age_seconds") == 0
    now = 1100.0
    assert value(metrics, "turnmill_checkpoint_age_seconds") == 70


def test_a_port_in_use_is_refused_with_a_suggestion(metrics: RunMetrics):
    port = metrics.serve(0)

    with RunMetrics(RunInfo("babyai")) as second, pytest.raises(OSError, match=rf"metrics.port \({port}\).*Try 0"):
        second.serve(port)


def test_closing_frees_the_port():
    with RunMetrics(RunInfo("babyai")) as first:
        port = first.serve(0)

    with RunMetrics(RunInfo("babyai")) as second:
        assert second.serve(port) == port


def test_the_documentation_lists_every_metric_and_no_other(metrics: RunMetrics):
    registries = metrics.registry, ToolMetrics().registry, gateway_metrics().registry, operator_metrics.REGISTRY
    families = [f for r in registries for f in r.collect() if f.name.startswith("turnmill_")]
    exist = {family.name + ("_total" if family.type == "counter" else ""): family.type for family in families}

    listed = dict(re.findall(r"^\| `(turnmill_\w+)` \| (\w+) \|", DOCS.read_text(), flags=re.MULTILINE))

    assert listed == exist


def test_the_documentation_names_every_phase_and_every_key_behind_a_gauge():
    text = DOCS.read_text()

    assert [name for name in (*GAUGES, *PHASES) if f"`{name}`" not in text] == []
