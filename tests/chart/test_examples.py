import re
from pathlib import Path
from typing import Any

import pytest

from turnmill.cli import checks
from turnmill.environments import registry
from turnmill.jobs import JobError, load_job
from turnmill.jobs.job import JobSpec
from turnmill.jobs.plugin_algorithm import PluginAlgorithm
from turnmill.jobs.values import tag_of, variants_of
from turnmill.jobs.yaml_file import parse_yaml

FOLDER = Path(__file__).parents[2] / "manifests" / "examples"
EXAMPLES = sorted(FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_lacks_at_most_its_model_tasks_and_interpreter(file: Path):
    try:
        problems = []
        load_job(file, checks=checks.ALL)
    except JobError as error:
        problems = [problem.path for problem in error.problems]

    assert set(problems) <= {"spec.model.path", "spec.environment.options.path", "spec.environment.python"}


@pytest.mark.parametrize("file", [file for file in EXAMPLES if file.stem.endswith("-cpu")], ids=lambda file: file.stem)
def test_the_examples_for_a_cpu_need_no_download(file: Path):
    job = load_job(file, checks=checks.ALL)

    assert job.spec.model.warm_start is not None
    assert job.spec.resources.device == "cpu"


def test_the_table_lists_exactly_the_examples():
    linked = re.findall(r"\[`([^`]+\.yaml)`\]\(([^)]+)\)", (FOLDER / "README.md").read_text())

    assert [name for name, link in linked if name != link] == []
    assert sorted(name for name, _ in linked) == [file.name for file in EXAMPLES]


def test_every_environment_has_an_example():
    named = {load_yaml(file)["spec"].get("environment", {}).get("name") for file in EXAMPLES}

    # GRL's agents name their environments themselves.
    assert registry._module_names() - named == set()


def test_every_algorithm_has_an_example_or_is_named_in_the_table():
    kinds = {load_yaml(file)["spec"].get("algorithm", {}).get("type") for file in EXAMPLES}
    text = (FOLDER / "README.md").read_text()

    for variant in variants_of(JobSpec.model_fields["algorithm"]):
        if variant is PluginAlgorithm:
            continue
        assert tag_of(variant) in kinds or f"algorithm.type={tag_of(variant)}" in text


def load_yaml(file: Path) -> dict[str, Any]:
    data: dict[str, Any] = parse_yaml(file.read_text()).value
    return data


def test_the_gpu_example_reports_that_its_model_is_missing():
    (file,) = (file for file in EXAMPLES if file.stem == "babyai-goto-gpu")

    with pytest.raises(JobError) as caught:
        load_job(file, ["model.path=/nowhere"], checks=checks.ALL)

    (problem,) = caught.value.problems
    assert (problem.path, problem.value) == ("spec.model.path", "/nowhere")
