"""Agents accept any response and stay within their limits."""

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from turnmill.environments.grl.agent_adapter import AgentAdapter, AgentAdapterOptions, AgentView

AGENTS = ["sokobanAgent", "tetrisAgent", "blocksworldAgent", "webshopAgent", "birdAgent", "gsm8kAgent"]
CONFIG = {"maxTurns": 3, "maxActionsAllTurns": 6, "maxActionsPerTurn": 4}
ADAPTERS = {
    name: AgentAdapter(None, 3, AgentAdapterOptions(agent_type=name, tag=name, agent_config=CONFIG, env_config={}))
    for name in AGENTS
}

actions = st.one_of(
    st.text(max_size=20), st.sampled_from(["Up", "1", "(move 1 to 0)", "click[buy now]", "```sql", "7"])
)
answers = st.lists(actions, max_size=6).map(lambda parts: f"</think><answer>{'||'.join(parts)}</answer>")
responses = st.lists(st.one_of(answers, st.text(max_size=60)), min_size=3, max_size=3)


@pytest.mark.parametrize("name", AGENTS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 999), texts=responses)
def test_any_response_counts_as_a_turn(name: str, seed: int, texts: list[str]):
    adapter = ADAPTERS[name]
    adapter.reset(seed)

    for number, response in enumerate(texts, 1):
        result = adapter.step(response)
        view = AgentView.model_validate_json(result.observation)
        assert math.isfinite(result.reward)
        assert len(view.actions) <= 4
        assert view.penalty in (0.0, -0.1)
        assert [message["role"] for message in view.messages].count("assistant") == number
        if result.terminated or result.truncated:
            break
    else:
        pytest.fail("the last turn ends the episode")
