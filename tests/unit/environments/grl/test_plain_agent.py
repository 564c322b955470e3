"""Plain classes with the methods of GRL's documentation, and of GRL's own agents."""

from typing import Any

import pytest

from support.agents import DocumentedAgent, ResettableAgent
from turnmill.core.errors import EnvironmentFailedError
from turnmill.environments.base import StepResult
from turnmill.environments.grl import get_agent_cls, list_agents, register_agent, registry
from turnmill.environments.grl.agent_adapter import AgentAdapter, AgentAdapterOptions, AgentView


def adapter(agent: type, **config: Any) -> AgentAdapter:
    settings = {"maxTurns": 4, "useThinkAnswerToken": False} | config
    path = f"{agent.__module__}:{agent.__qualname__}"
    return AgentAdapter(None, 4, AgentAdapterOptions(agent_type=path, tag="plain", agent_config=settings))


def view(text: str) -> AgentView:
    return AgentView.model_validate_json(text)


@pytest.mark.feature("GRL", "agents that are plain classes")
def test_an_agent_of_the_documentation_plays_the_episode_of_a_seed():
    agent = adapter(DocumentedAgent)

    opening = view(agent.reset(2))
    steps = [agent.step("next"), agent.step("hm"), agent.step("next")]

    assert opening.messages == [{"role": "user", "content": "Count to 2. "}]
    assert [(step.reward, step.terminated, step.truncated) for step in steps] == [
        (1.0, False, False), (0.0, False, False), (1.0, True, False),
    ]  # fmt: skip
    first, second, last = (view(step.observation) for step in steps)
    assert first.messages[-1] == {"role": "user", "content": "Count to 2. at 1"}
    assert [(each.penalty, each.valid) for each in (first, second, last)] == [(0, True), (-0.5, False), (0, True)]
    assert last.metrics == {"plain/success": 1.0, "plain/number": 2.0}
    assert last.messages[-1] == {"role": "assistant", "content": "next"}


def test_the_response_in_the_chat_is_the_one_that_the_agent_wrote():
    agent = adapter(DocumentedAgent)
    agent.reset(2)

    step = agent.step("next")

    assert view(step.observation).response == "I say next"
    assert view(step.observation).messages[1] == {"role": "assistant", "content": "I say next"}


def test_the_next_episode_has_a_new_agent_or_a_reset_one():
    for agent_class, opening in ((DocumentedAgent, "Count to 5. "), (ResettableAgent, "Count to 5. at the start")):
        ResettableAgent.num_environments = 0
        agent = adapter(agent_class)
        agent.reset(1)
        agent.step("no")

        assert view(agent.reset(5)).messages == [{"role": "user", "content": opening}]
        assert view(agent.step("next").observation).penalty == 0
        assert ResettableAgent.num_environments == (agent_class is ResettableAgent)


def test_the_limit_of_turns_ends_an_episode_of_a_plain_agent():
    agent = adapter(DocumentedAgent, maxTurns=1)
    agent.reset(2)

    step: StepResult = agent.step("next")

    assert (step.terminated, step.truncated) == (False, True)


def test_a_plain_agent_reads_its_own_settings_beside_grls():
    agent = adapter(DocumentedAgent, options={"step": 2})
    agent.reset(2)

    assert agent.step("next").terminated


def test_the_environment_of_a_plain_agent_has_the_number_keys_of_grls_yaml(monkeypatch):
    seen = []
    monkeypatch.setattr(ResettableAgent, "initialize_env", lambda self: seen.append(self.config.env_config))
    path = f"{ResettableAgent.__module__}:{ResettableAgent.__qualname__}"
    given = {"action_lookup": {"1": "Up", "2": "Down"}, "grid_vocab": {"#": "wall"}, "dim_x": 4}

    AgentAdapter(None, 4, AgentAdapterOptions(agent_type=path, tag="plain", env_config=given))

    assert seen[0] == {"action_lookup": {1: "Up", 2: "Down"}, "grid_vocab": {"#": "wall"}, "dim_x": 4}


def test_a_plain_class_can_be_registered(monkeypatch):
    list_agents()
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))

    assert register_agent("documented")(DocumentedAgent) is DocumentedAgent
    assert register_agent("documented")(DocumentedAgent) is DocumentedAgent
    assert get_agent_cls("documented").plain_class is DocumentedAgent
    with pytest.raises(TypeError, match="is no agent: derive it from BaseAgent, or give it get_llm_prompts"):
        register_agent("dictionary")(dict)


def test_a_reward_that_is_no_number_is_an_error(monkeypatch):
    monkeypatch.setattr(DocumentedAgent, "get_env_outputs", lambda self, text: {"state": "", "reward": "much"})
    agent = adapter(DocumentedAgent)
    agent.reset(2)

    with pytest.raises(EnvironmentFailedError, match="'much' as reward, which is no number"):
        agent.step("next")
