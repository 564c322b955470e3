"""`turnmill check` of environments that another interpreter runs, and of reward models."""

import json
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


NO_FOLDER = ("spec.rewardModel.path", "is no folder on this machine")
TOOL = Path(__file__).parents[2] / "manifests" / "examples" / "tool-arithmetic-cpu.yaml"


@pytest.mark.parametrize(
    ("reward", "model", "found"),
    [
        ("judge", "null", [("spec.rewardModel", "must be set: spec.environment.options.reward asks it")]),
        ("reward_model", "null", [("spec.rewardModel", "must be set: spec.environment.options.reward asks it")]),
        (
            "exact_match",
            "{path: /m}",
            [
                ("spec.rewardModel.path", "is no folder on this machine"),
                ("spec.rewardModel.path", "is asked for no reward"),
            ],
        ),
        ("reward_model", "{path: /m}", [("spec.rewardModel.path", "is no folder on this machine")]),
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


@pytest.mark.parametrize(
    ("reward", "architecture", "arguments", "rule"),
    [
        ("reward_model", "Qwen2ForCausalLM", "[]", "is a language model (Qwen2ForCausalLM), which gives no scores"),
        ("reward_model", "Qwen2ForCausalLM", "[--convert, classify]", None),
        ("reward_model", "Qwen2ForSequenceClassification", "[]", None),
        ("judge", "Qwen2ForCausalLM", "[]", None),
        (
            "judge", "Qwen2ForSequenceClassification", "[]",
            "gives scores (Qwen2ForSequenceClassification) and cannot write a verdict",
        ),
    ],
)  # fmt: skip
def test_a_reward_model_can_give_the_rewards_that_it_is_asked_for(tmp_path, reward, architecture, arguments, rule):
    data = tmp_path / "tasks.jsonl"
    data.write_text('{"prompt": "1 + 1?", "answer": "2"}\n' * 4)
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    settings = [
        f"environment={{name: dataset, options: {{path: {data}, validationTasks: 1, reward: {reward}}}}}",
        f"model={{path: {tmp_path}}}",
        f"rewardModel={{path: {tmp_path}, arguments: {arguments}}}",
    ]
    found = []
    try:
        load_job(TOOL, settings, checks=[checks.agent])
    except JobError as error:
        found = [problem.rule for problem in error.problems if problem.path == "spec.rewardModel.path"]

    assert found == ([] if rule is None else [rule])


def test_a_reward_model_is_a_folder_with_a_model(tmp_path):
    with pytest.raises(JobError) as refused:
        load_job(TOOL, [f"rewardModel={{path: {tmp_path}}}"])

    assert ("spec.rewardModel.path", "has no config.json and no tokenizer_config.json") in [
        (problem.path, problem.rule) for problem in refused.value.problems
    ]
