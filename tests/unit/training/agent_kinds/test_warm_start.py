"""Which environments and tasks have something that a warm start can imitate."""

from typing import Any

import pytest

from support.jobs import job, tool_job
from turnmill.jobs import JobError, parse_job
from turnmill.training.agent_kinds.base import AgentKind
from turnmill.training.agent_kinds.tool import ToolKind
from turnmill.training.agent_kinds.verlog import VerlogKind

TETRIS = "turnmill.environments.tetris:Tetris"


def problems(kind: type[AgentKind[Any]], data: dict[str, Any]) -> list[str]:
    try:
        parse_job(data, [kind.warm_start_problems])
    except JobError as error:
        return [str(problem) for problem in error.problems]
    return []


@pytest.mark.parametrize("name", ["babyai", TETRIS])
def test_an_environment_with_an_expert_can_be_warm_started(name):
    assert problems(VerlogKind, job(environment={"name": name})) == []


@pytest.mark.parametrize("name", ["arithmetic", "support.tasks:CoinFlips"])
def test_tasks_with_demonstrations_can_be_warm_started(name):
    assert problems(ToolKind, tool_job(environment={"name": name})) == []


@pytest.mark.parametrize(
    ("kind", "data", "known"),
    [
        (VerlogKind, job(environment={"name": "maths"}), "babaisai, babyai, blocksworld, sokoban, tetris"),
        (ToolKind, tool_job(environment={"name": "dataset"}), "arithmetic, calculator"),
    ],
    ids=["environment", "tasks"],
)
def test_without_an_expert_those_that_have_one_are_named(kind, data, known):
    assert problems(kind, data) == [
        f"spec.model.warmStart: has no expert for a warm start to imitate in {data['spec']['environment']['name']}. "
        f"Give a folder as spec.model.path, or take an environment with an expert: {known}."
    ]


@pytest.mark.parametrize(("kind", "data"), [(VerlogKind, job()), (ToolKind, tool_job())])
def test_an_unknown_name_is_reported_once_and_not_as_one_without_an_expert(kind, data):
    data["spec"]["environment"] = {"name": "nowhere"}

    assert problems(kind, data) == []
