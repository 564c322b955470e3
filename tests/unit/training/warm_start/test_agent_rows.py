import pytest
import torch

from turnmill.core.errors import SettingsError
from turnmill.jobs.grl_agent import AgentConfig, NamedAgent
from turnmill.jobs.model import WarmStart
from turnmill.training.warm_start.agent_rows import build_agent_rows
from turnmill.training.warm_start.tokenizer import UNKNOWN

SETTINGS = WarmStart(turns=40, action_noise=0.5)
CONFIG = AgentConfig(max_turns=3, max_actions_all_turns=3, system_prompt="s", prompt="push")


def sokoban(**config: object) -> NamedAgent:
    return NamedAgent(
        name="sokoban", agent_type="sokobanAgent", agent_config=CONFIG, env_config={"view": "spaced"} | config
    )


def test_demonstrations_have_the_conversation_format_of_the_agent_loop():
    tokenizer, rows = build_agent_rows([sokoban()], SETTINGS)

    assert len(rows) >= SETTINGS.turns
    first, second = rows[:2]
    prompt, response = tokenizer.decode(first.prompt_ids), tokenizer.decode(first.answer_ids)
    assert prompt.startswith("<sys>s<|im_end|>")
    assert prompt.endswith("<ast><think>")
    assert "</think> <answer>" in response
    assert response.endswith("</answer><|im_end|>")
    # The second prompt continues the first prompt and its response.
    assert second.prompt_ids[: len(first.prompt_ids) + len(first.answer_ids)] == first.prompt_ids + first.answer_ids
    assert "Reward:" in tokenizer.decode(second.prompt_ids)


def test_every_word_is_in_the_vocabulary_and_every_action_has_a_target_probability():
    tokenizer, rows = build_agent_rows([sokoban()], SETTINGS)

    unknown = tokenizer.convert_tokens_to_ids(UNKNOWN)
    assert not any(unknown in (*row.prompt_ids, *row.answer_ids) for row in rows)
    for row in rows:
        assert torch.allclose(row.action_targets.sum(1), torch.ones(len(row.action_targets)))
    (up,) = tokenizer.encode(" Up", add_special_tokens=False)
    assert all(float(row.action_targets[0, up]) > 0 for row in rows)


def test_actions_use_the_action_lookup_of_the_agent():
    words = {0: "up", 1: "down", 2: "left", 3: "right"}
    tokenizer, rows = build_agent_rows([sokoban(action_lookup=words)], SETTINGS)

    (up,) = tokenizer.encode(" up", add_special_tokens=False)
    assert all(float(row.action_targets[0, up]) > 0 for row in rows)


def test_demonstrations_cover_every_agent():
    tetris = NamedAgent(
        name="tetris", agent_type="tetrisAgent", agent_config=CONFIG, env_config={"view": "spaced", "dim_x": 3}
    )
    tokenizer, rows = build_agent_rows([sokoban(), tetris], SETTINGS)

    texts = [tokenizer.decode(row.prompt_ids) for row in rows]
    assert any("box on target" in text for text in texts)
    assert any("falling block" in text for text in texts)


@pytest.mark.parametrize(
    "agent",
    [
        NamedAgent(name="a", agent_type="support.agents:Counter"),
        NamedAgent(name="a", agent_type="gsm8kAgent"),
        NamedAgent(name="a", agent_type="sokobanAgent", agent_config=AgentConfig(enable_think=False)),
    ],
)
def test_an_agent_without_demonstrations_is_refused(agent: NamedAgent):
    with pytest.raises(SettingsError, match=r"model\.warmStart: "):
        build_agent_rows([agent], SETTINGS)
