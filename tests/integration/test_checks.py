"""`turnmill check` of environments that another interpreter runs, and of reward models."""

import sys
from pathlib import Path

import pytest

from turnmill.cli import checks
from turnmill.jobs import JobError, load_job

EXAMPLE = Path(__file__).parents[2] / "manifests" / "examples" / "sokoban-cpu.yaml"


def problems(*overrides: str) -> list[tuple[str, str]]:
    try:
        load_job(EXAMPLE, overrides, checks=[checks.agent])
    except JobError as error:
        return [(problem.path, problem.rule) for problem in error.problems]
    return []


def test_an_environment_is_checked_in_its_own_interpreter():
    assert problems(f"environment.python={sys.executable}") == []


def test_problems_in_the_interpreter_of_an_environment_are_reported():
    ((path, rule),) = problems(f"environment.python={sys.executable}", "environment.options.size=[1, 1]")

    assert path == "spec.environment.python"
    assert "raised SettingsError: environment.options.size" in rule


@pytest.mark.parametrize("python", ["/no/such/python", __file__])
def test_an_interpreter_that_cannot_be_run_is_reported(python):
    assert problems(f"environment.python={python}") == [("spec.environment.python", "is no program that can be run")]


TOOL = Path(__file__).parents[2] / "manifests" / "examples" / "tool-arithmetic-cpu.yaml"


@pytest.mark.parametrize(
    ("reward", "model", "found"),
    [
        ("judge", "null", [("spec.rewardModel", "must be set: spec.environment.options.reward asks it")]),
        ("reward_model", "null", [("spec.rewardModel", "must be set: spec.environment.options.reward asks it")]),
        ("exact_match", "{path: /m}", [("spec.rewardModel.path", "is asked for no reward")]),
        ("reward_model", "{path: /m}", []),
        ("exact_match", "null", []),
    ],
)
def test_a_reward_model_is_there_if_it_is_asked_and_asked_if_it_is_there(tmp_path, reward, model, found):
    data = tmp_path / "tasks.jsonl"
    data.write_text('{"prompt": "1 + 1?", "answer": "2"}\n' * 4)
    options = f"environment={{name: dataset, options: {{path: {data}, validationTasks: 1, reward: {reward}}}}}"
    try:
        load_job(TOOL, [options, "model={path: /m}", f"rewardModel={model}"], checks=[checks.agent])
        problems = []
    except JobError as error:
        problems = [(problem.path, problem.rule) for problem in error.problems]

    assert [each for each in problems if "rewardModel" in each[0]] == found
