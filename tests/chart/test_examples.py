from pathlib import Path

import pytest

from turnmill.cli import checks
from turnmill.jobs import JobError, load_job

EXAMPLES = sorted((Path(__file__).parents[2] / "manifests" / "examples").glob("*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_lacks_nothing_but_perhaps_its_model_and_its_tasks(file: Path):
    try:
        problems = []
        load_job(file, checks=checks.ALL)
    except JobError as error:
        problems = [problem.path for problem in error.problems]

    assert set(problems) <= {"spec.model.path", "spec.environment.options.path"}


@pytest.mark.parametrize("name", ["babyai-goto-cpu", "babyai-goto-separate-cpu", "tool-arithmetic-cpu"])
def test_the_examples_for_a_cpu_need_no_download(name: str):
    (file,) = (file for file in EXAMPLES if file.stem == name)

    job = load_job(file, checks=checks.ALL)

    assert job.spec.model.warm_start is not None
    assert job.spec.resources.device == "cpu"


def test_the_example_for_gpus_says_that_its_model_is_missing():
    (file,) = (file for file in EXAMPLES if file.stem == "babyai-goto-gpu")

    with pytest.raises(JobError) as caught:
        load_job(file, ["model.path=/nowhere"], checks=checks.ALL)

    (problem,) = caught.value.problems
    assert (problem.path, problem.value) == ("spec.model.path", "/nowhere")
