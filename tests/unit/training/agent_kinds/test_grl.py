"""What `turnmill check` finds in jobs of GRL's agents, each of which is created once."""

import sys
from pathlib import Path

import pytest

from turnmill.jobs import JobError, load_job
from turnmill.training.agent_kinds.grl import GrlKind

EXAMPLE = Path(__file__).parents[4] / "manifests" / "examples" / "sokoban-grl-cpu.yaml"


def problems(agent: str, *overrides: str) -> list[str]:
    agents = (f"agent.agents=[{agent}]", "agent.training=[]", "agent.validation=[]")
    try:
        load_job(EXAMPLE, [*agents, *overrides], checks=[GrlKind.problems])
    except JobError as error:
        return [str(problem).removesuffix(" (--set)") for problem in error.problems]
    return []


@pytest.mark.parametrize(
    ("agent", "problem"),
    [
        ("agentType: sokobanAgnt", "spec.agent.agents[0].agentType: There is no agent 'sokobanAgnt'. Did you mean"),
        ("agentType: 'nowhere:Agent'", "spec.agent.agents[0].agentType: 'nowhere:Agent' cannot be imported"),
        ("agentType: sokobanAgent, envConfig: {dim_rom: [6, 6]}", "spec.agent.agents[0].envConfig.dim_rom: "),
        ("agentType: sokobanAgent, envConfig: {dim_room: [6]}", "spec.agent.agents[0].envConfig.dim_room"),
        ("agentType: sokobanAgent, envConfig: {num_boxes: 99}", "spec.agent.agents[0].envConfig.numBoxes"),
        ("agentType: environmentAgent, envConfig: {name: babyay}", "spec.agent.agents[0].environment.name: "),
        ("agentType: webshopAgent, envConfig: {shop: x}", "spec.agent.agents[0].envConfig.shop: webshop has no such"),
    ],
)
def test_problems_of_an_agent_are_reported_with_their_path(agent: str, problem: str):
    (found,) = problems(f"{{name: a, {agent}}}")

    assert found.startswith(problem)


def test_agents_that_can_be_created_have_no_problems():
    assert (
        problems(
            "{name: a, agentType: tetrisAgent}, {name: b, agentType: environmentAgent, envConfig: {name: sokoban}}"
        )
        == []
    )


def test_agents_that_another_interpreter_has_are_not_created_by_this_one():
    elsewhere = "{name: a, agentType: 'nowhere:Agent'}"

    assert problems(elsewhere, f"environment={{python: {sys.executable}}}") == []
