"""Validation of the custom resource by a real API server."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.jobs import RULE_VIOLATIONS, SFT_RULE_VIOLATIONS, TOOL_RULE_VIOLATIONS, job, sft_job, tool_job
from support.kubernetes import Namespace, temporary_namespace, wait_for
from support.team_jobs import CRD_NAME, install_definition, try_create
from turnmill.jobs import JobError, Problem, parse_job
from turnmill.jobs.rules import FIXED, RULES, Rule
from turnmill.jobs.yaml_file import parse_yaml

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def namespace(prefix: str) -> Iterator[Namespace]:
    """A namespace for the module, and the definition as it is committed."""
    with temporary_namespace(prefix) as fresh:
        install_definition(fresh)
        yield fresh


def errors_of(namespace: Namespace, jobs: Mapping[str, Any]) -> dict[str, str]:
    """Return the API server's error for each invalid job, by name."""
    refused = try_create(namespace, *({**data, "metadata": {"name": name}} for name, data in jobs.items()))
    # The message about one refused job begins differently from that about several, and the policy's from the schema's.
    errors = re.split(r'(?:^|\n)[^\n]*(?i:AgentTrainingJob)[^ ]* "([^"]+)" is (?:invalid|forbidden): ', refused)
    assert errors[0] == "", errors[0]
    return dict(zip(errors[1::2], errors[2::2], strict=True))


def is_of(rule: Rule, problem: Problem) -> bool:
    """Return whether a problem has the sentence of a rule, with values in it."""
    sentence = r"\S+".join(map(re.escape, re.split(r"\{[A-Za-z.]+\}", rule.sentence)))
    return f"spec.{rule.path}" == problem.path and re.fullmatch(sentence, problem.rule) is not None


def short_names(breakers: Mapping[str, Any], prefix: str) -> dict[str, str]:
    return {re.sub(r"[^a-z]+", "-", f"{prefix}-{name.lower()}")[:40].strip("-"): name for name in breakers}


def test_the_api_server_and_the_command_line_report_the_same_messages(namespace: Namespace):
    jobs = {short: job(**RULE_VIOLATIONS[name]) for short, name in short_names(RULE_VIOLATIONS, "v").items()}
    jobs |= {
        short: tool_job(**TOOL_RULE_VIOLATIONS[name]) for short, name in short_names(TOOL_RULE_VIOLATIONS, "t").items()
    }
    jobs |= {
        short: sft_job(**SFT_RULE_VIOLATIONS[name]) for short, name in short_names(SFT_RULE_VIOLATIONS, "s").items()
    }
    jobs["both-algorithm"] = job(algorithm={"type": "grpo"})

    errors = errors_of(namespace, jobs)

    missing = []
    for name, data in jobs.items():
        with pytest.raises(JobError) as caught:
            parse_job(data)
        for problem in caught.value.problems:
            rule = next(found for found in RULES if is_of(found, problem))
            if f"{problem.path}: {rule.message}" not in errors[name]:
                missing.append((name, str(problem), errors[name]))
    assert missing == []
    assert errors.keys() == jobs.keys()


def test_valid_jobs_are_accepted(namespace: Namespace):
    examples = [parse_yaml(file.read_text()).value for file in sorted((ROOT / "manifests/examples").rglob("*.yaml"))]
    jobs = {data["metadata"]["name"]: data for data in examples if data.get("kind") == "AgentTrainingJob"}

    assert errors_of(namespace, {"verlog": job(), "tool": tool_job(), "sft": sft_job(), **jobs}) == {}


FIELD_BREAKERS: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown word": ({"agent__validationSampling": "greed"}, "spec.agent.validationSampling: Unsupported value"),
    "no word and no file": ({"agent__prompt": "cott"}, "spec.agent.prompt: Invalid value"),
    "too small": ({"agent__maxTurns": 0}, "spec.agent.maxTurns"),
    "too large": ({"retries": 101}, "spec.retries"),
    "text for a number": ({"training__steps": "20"}, "spec.training.steps"),
    "a missing field": ({"training": {"turnsPerStep": 256}}, "spec.training.steps: Required value"),
    "too many trackers": ({"tracking__loggers": ["file"] * 9}, "spec.tracking.loggers"),
    "a name too long": ({"environment__task": "x" * 254}, "spec.environment.task"),
    "a field of another agent": ({"agent__stopTokens": ["</a>"]}, "fields that only type tool has"),
    "a queue that is no name": ({"queue": "Team A"}, "spec.queue"),
}


def test_every_field_has_bounds(namespace: Namespace):
    jobs = {short: job(**FIELD_BREAKERS[name][0]) for short, name in short_names(FIELD_BREAKERS, "f").items()}

    errors = errors_of(namespace, jobs)

    assert {
        name: errors.get(short)
        for short, name in short_names(FIELD_BREAKERS, "f").items()
        if FIELD_BREAKERS[name][1] not in errors.get(short, "")
    } == {}


def test_unknown_fields_are_refused(namespace: Namespace):
    done = namespace.try_kubectl(
        "create", "--dry-run=server", "--validate=strict", "--filename=-", stdin=json.dumps(job(agent__max_turns=3))
    )

    assert 'unknown field "spec.agent.max_turns"' in done.stderr


@pytest.mark.parametrize("name", ["x" * 41, "9-starts-with-a-digit"])
def test_a_name_that_kuberay_does_not_accept_is_refused(namespace: Namespace, name: str):
    assert "metadata.name must be at most 40" in next(iter(errors_of(namespace, {name: job()}).values()))


CHANGES: dict[str, dict[str, Any]] = {
    "model": {"model": {"warmStart": {"seed": 1}}},
    "environment": {"environment": {"options": {"rooms": {"wide": 3}}}},
    "agent.type": tool_job(agent__prompt=None)["spec"],
    "algorithm.type": tool_job(agent__prompt=None)["spec"],
    "managedBy": {"managedBy": "kueue.x-k8s.io/multikueue"},
}


@pytest.mark.parametrize("fixed", FIXED, ids=lambda fixed: fixed.path)
def test_fields_that_identify_a_run_are_immutable(namespace: Namespace, fixed: Any):
    name = re.sub(r"[^a-z]+", "-", fixed.path.lower())
    namespace.apply({**job(environment__options={"rooms": {"wide": 2}}), "metadata": {"name": name}})

    done = namespace.try_kubectl(
        *("patch", "atj", name, "--type=merge", f"--patch={json.dumps({'spec': CHANGES[fixed.path]})}")
    )

    assert f"spec.{fixed.path}: {fixed.sentence}" in done.stderr


def test_a_field_that_is_null_counts_as_left_out(namespace: Namespace):
    nulls = {"model__path": None, "training__tasksPerStep": None, "queue": None, "algorithm__kl": None}

    assert errors_of(namespace, {"nulls": job(**nulls)}) == {}


def test_a_job_that_breaks_a_new_rule_can_be_labelled_and_loses_its_finalizer(namespace: Namespace):
    policy = ("validatingadmissionpolicybinding", CRD_NAME)
    namespace.kubectl("delete", *policy)
    broken = {
        **job(queue="a", cluster="shared"),
        "metadata": {"name": "older", "finalizers": ["turnmill.dev/clean-up"]},
    }
    try:
        wait_for(
            "end of the policy",
            lambda: namespace.try_kubectl("apply", "--filename=-", stdin=json.dumps(broken)).returncode == 0,
            seconds=60,
        )
    finally:
        install_definition(namespace)

    for change in ({"labels": {"a": "b"}}, {"finalizers": None}):
        namespace.kubectl("patch", "atj", "older", "--type=merge", f"--patch={json.dumps({'metadata': change})}")


def test_other_fields_can_be_changed(namespace: Namespace):
    namespace.apply({**job(), "metadata": {"name": "mutable"}})

    change = {"suspend": True, "retries": 1, "ttlSecondsAfterFinished": 60, "training": {"steps": 30}}
    namespace.kubectl("patch", "atj", "mutable", "--type=merge", f"--patch={json.dumps({'spec': change})}")

    found = namespace.get("atj", "mutable")
    assert found is not None
    assert found["spec"]["training"]["steps"] == 30


def test_the_api_server_and_the_models_set_the_same_defaults(namespace: Namespace):
    namespace.apply({**job(), "metadata": {"name": "defaults"}})

    found = namespace.get("atj", "defaults")

    assert found is not None
    assert parse_job(found).spec == parse_job(job()).spec


def test_kubectl_get_shows_state_and_progress(namespace: Namespace):
    namespace.apply({**job(), "metadata": {"name": "columns"}})
    status = {
        "state": "Running",
        "attempt": 2,
        "cluster": "columns-2-abcde",
        "progress": {
            "step": 7,
            "rewardMean": 0.5,
            "rolloutsPerSecond": 1.5,
            "infraFailedRatio": 0.01,
            "checkpointStep": 5,
        },
    }
    patch = json.dumps({"status": status})
    namespace.kubectl("patch", "atj", "columns", "--type=merge", "--subresource=status", f"--patch={patch}")

    narrow = namespace.kubectl("get", "all", "--ignore-not-found").splitlines()
    wide = namespace.kubectl("get", "atj", "columns", "--output=wide").splitlines()

    assert any(line.startswith("agenttrainingjob.turnmill.dev/columns") for line in narrow)
    assert re.split(r"\s{2,}", wide[0].strip()) == [
        *("NAME", "STATE", "STEP", "REWARD", "ROLLOUTS/S", "AGE"),
        *("ATTEMPT", "FAILED SHARE", "CLUSTER", "CHECKPOINT"),
    ]
    row = wide[1].split()
    assert (row[:5], row[6:]) == (["columns", "Running", "7", "0.5", "1.5"], ["2", "0.01", "columns-2-abcde", "5"])
