"""Jobs exchanged between versions of turnmill."""

import json
from pathlib import Path

import pytest

from turnmill.jobs import AgentTrainingJob, parse_job
from turnmill.jobs.versions import changed_fields, known_fields
from turnmill.jobs.yaml_file import parse_yaml

EXAMPLES = sorted(Path("manifests/examples").glob("*.yaml"))


def example(file: Path) -> AgentTrainingJob:
    return parse_job(parse_yaml(file.read_text()).value)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_a_job_is_restored_from_its_changed_fields(file):
    changed = json.loads(json.dumps(changed_fields(example(file))))

    assert parse_job(changed) == example(file)


def test_defaults_are_not_among_the_changed_fields():
    job = example(Path("manifests/examples/babyai-goto-cpu.yaml"))

    assert changed_fields(job)["spec"]["environment"] == {"name": "babyai", "task": "GoToObj"}


def test_newer_fields_are_left_out_and_named():
    job = example(Path("manifests/examples/babyai-goto-cpu.yaml"))
    resource = job.model_dump(mode="json", by_alias=True)
    resource["spec"]["environment"]["depth"] = 7
    resource["spec"]["agent"]["planner"] = {"beams": 3}

    known, newer = known_fields(resource)

    assert sorted(newer) == ["spec.agent.planner", "spec.environment.depth"]
    assert parse_job(known) == job
    assert resource["spec"]["environment"]["depth"] == 7
