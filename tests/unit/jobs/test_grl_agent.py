"""Groups of GRL's agents in a job."""

from typing import Any

import pytest

from support.jobs import GRL_RULE_VIOLATIONS, grl_job
from turnmill.jobs import AgentTrainingJob, JobError, parse_job
from turnmill.jobs.grl_agent import GrlAgent
from turnmill.jobs.rules import RULES


def agent_of(**changes: Any) -> GrlAgent:
    return parse_job(grl_job(**changes)).spec.grl_agent


def problems_of(data: dict[str, Any]) -> list[str]:
    with pytest.raises(JobError) as caught:
        parse_job(data)
    return [str(problem) for problem in caught.value.problems]


def layout(agent: GrlAgent) -> list[tuple[int, str, int]]:
    return [(group.number, group.agent.name, group.size) for group in agent.training_groups]


@pytest.mark.parametrize("change", GRL_RULE_VIOLATIONS.values(), ids=GRL_RULE_VIOLATIONS)
def test_a_rule_across_fields_is_enforced(change: dict[str, Any]):
    (problem,) = problems_of(grl_job(**change))

    assert any(problem.startswith(f"spec.{rule.path}: ") for rule in RULES)


def test_a_valid_grl_job_is_unchanged_by_serialisation():
    spec = parse_job(grl_job()).spec

    assert AgentTrainingJob.model_validate_json(parse_job(grl_job()).model_dump_json(by_alias=True)).spec == spec
    assert (spec.agent.type, spec.environment.name) == ("grl", "")


@pytest.mark.feature("GRL", "groups")
def test_groups_are_numbered_over_all_kinds_of_agents():
    agent = agent_of(agent__training=["simple", "large"], agent__agentGroupNum=[1, 2], agent__agentGroupSize=[4, 3])

    assert layout(agent) == [(0, "simple", 4), (1, "large", 3), (2, "large", 3)]
    assert sum(group.size for group in agent.training_groups) == 1 * 4 + 2 * 3


def test_a_single_number_and_size_of_groups_apply_to_all_agents():
    agent = agent_of(agent__training=["large", "simple"], agent__agentGroupNum=[1], agent__agentGroupSize=[2])

    assert layout(agent) == [(0, "large", 2), (1, "simple", 2)]


@pytest.mark.parametrize("lists", [{"agent__training": [], "agent__train": ["large"]}, {"agent__training": ["large"]}])
def test_training_agents_are_listed_under_training_or_train(lists: dict[str, Any]):
    agent = agent_of(agent__agentGroupNum=[1], agent__agentGroupSize=[2], **lists)

    assert layout(agent) == [(0, "large", 2)]


def test_without_lists_all_agents_are_trained_and_validated():
    agent = agent_of(
        agent__training=[], agent__validation=[], agent__agentGroupNum=[1], agent__validationAgentGroupNum=[1]
    )

    assert [name for _, name, _ in layout(agent)] == ["simple", "large"]
    assert [group.agent.name for group in agent.validation_groups] == ["simple", "large"]


def test_an_agent_listed_twice_is_trained_and_validated_twice():
    agent = agent_of(
        agent__training=["large", "large"],
        agent__validation=[],
        agent__agentGroupNum=[1, 2],
        agent__agentGroupSize=[2],
        agent__validationAgentGroupNum=[3, 4],
    )

    assert (len(agent.training_groups), len(agent.validation_groups)) == (3, 7)


def test_the_defaults_are_those_of_grl():
    agent = agent_of()

    assert len(agent.training_groups) == 8
    assert {group.size for group in agent.training_groups} == {16}
    assert (agent.validation_seed, agent.rollout_filter_ratio, agent.use_turn_scores) == (123, 0.25, False)
    assert (agent.reward_normalization.grouping, agent.reward_normalization.method) == ("state", "identity")
    config = agent.agents[1].agent_config
    assert (config.max_turns, config.max_actions_all_turns, config.max_actions_per_turn) == (1, 1, 1)
    assert (config.max_tokens, config.format_penalty, config.enable_think) == (100, -0.1, True)
    assert config.action_separator == "||"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"agent__agents": []}, "spec.agent.agents: [] must be at least 1 entries long."),
        ({"agent__agents": [{"name": "a"}]}, "spec.agent.agents[0].agentType: is missing."),
        ({"agent__agentGroupNum": 8}, "spec.agent.agentGroupNum: 8 must be a list."),
        ({"agent__agentGroupNum": [0]}, "spec.agent.agentGroupNum[0]: 0 must be at least 1. Try 1."),
        ({"agent__rolloutFilterRatio": 0}, "spec.agent.rolloutFilterRatio: 0 must be greater than 0."),
        ({"agent__rolloutFilterType": "top"}, "spec.agent.rolloutFilterType: 'top' must be std or std_rev."),
        ({"agent__rewardNormalization": {"method": "max"}}, "spec.agent.rewardNormalization.method: 'max' must be"),
        (
            {"agent__agents": [{"name": "simple", "agentType": "a", "agentConfig": {"maxTurn": 3}}]},
            "spec.agent.agents[0].agentConfig.maxTurn: 3 is no field of spec.agent.agents[0].agentConfig. Did you mean",
        ),
    ],
)
def test_an_invalid_field_is_refused(change: dict[str, Any], message: str):
    (problem, *_) = problems_of(grl_job(**change))

    assert problem.startswith(message)
