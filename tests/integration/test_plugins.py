"""Checks of and training with an agent kind and an algorithm from another package."""

import os
from pathlib import Path

import pytest

from support.training_runs import TrainingRun
from turnmill.cli import checks
from turnmill.jobs import JobError, load_job
from turnmill.training.agent_kinds import agent_kind
from turnmill.training.algorithms import trajectory_algorithm_of

PLUGINS = Path(__file__).parents[1] / "support" / "plugins"
JOB = """
apiVersion: turnmill.dev/v1alpha1
kind: AgentTrainingJob
metadata: {name: plugins}
spec:
  model: {warmStart: {turns: 100, gradientSteps: 10, maxLoss: 10}}
  agent:
    {type: "user_plugin:OneAnswer", groupSize: 2, maxPromptLength: 32, maxResponseLength: 16, options: {stopToken: "!"}}
  environment: {name: arithmetic}
  algorithm: {type: "user_plugin:FixedBaseline", kl: {coefficient: 0}, options: {baseline: 0.25}}
  training: {steps: 1, tasksPerStep: 2}
  resources: {device: cpu}
"""


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    return file


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PLUGINS))


def problems(job_file: Path, *overrides: str) -> list[str]:
    try:
        load_job(job_file, overrides, checks=checks.ALL)
    except JobError as error:
        return [str(problem) for problem in error.problems]
    return []


def test_a_job_without_its_plugins_is_parsed_as_the_operator_does(job_file):
    spec = load_job(job_file).spec

    assert (spec.agent.type, spec.group_size, spec.max_concurrency) == ("user_plugin:OneAnswer", 2, 1024)
    assert (spec.algorithm.type, spec.kl.coefficient) == ("user_plugin:FixedBaseline", 0)


def test_a_check_reports_classes_that_cannot_be_imported(job_file):
    agent, algorithm = problems(job_file, "agent.type=nowhere:Agent", "algorithm.type=turnmill.jobs:load_job")

    assert agent.startswith("spec.agent.type: 'nowhere:Agent' cannot be imported (ModuleNotFoundError: ")
    assert algorithm.startswith("spec.algorithm.type: 'turnmill.jobs:load_job' is no subclass of")


def test_a_check_reports_invalid_options_of_the_classes(job_file, importable):
    assert problems(job_file) == []
    agent, algorithm = problems(job_file, "agent.options.stopTokn=x", "algorithm.options.baseline=2")

    assert agent.startswith("spec.agent.options.stopTokn: ")
    assert algorithm.startswith("spec.algorithm.options.baseline: ")


def test_fields_of_built_in_types_are_refused(job_file):
    (problem,) = problems(job_file, "agent.enableMtrl=true")[:1]

    assert problem.startswith("spec.agent.enableMtrl: ")


def test_plugins_are_created_with_their_settings_and_options(job_file, importable):
    spec = load_job(job_file).spec

    kind, algorithm = agent_kind(spec.agent), trajectory_algorithm_of(spec.trajectory_algorithm)

    assert (kind.max_prompt_tokens, kind.options.stop_token) == (32, "!")
    assert algorithm.options.baseline == 0.25


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_step_is_trained_with_an_agent_kind_and_an_algorithm_from_another_package(job_file, tmp_path):
    path = os.pathsep.join([str(PLUGINS), *filter(None, [os.environ.get("PYTHONPATH")])])

    with TrainingRun(job_file, tmp_path / "run", {"PYTHONPATH": path}) as run:
        run.train()

        (step,) = [row for row in run.metrics if row["step"] == 1]
        assert step["user_plugin/baseline"] == 0.25
