import pytest

from turnmill.environments import create
from turnmill.jobs.model import WarmStart
from turnmill.jobs.verlog_agent import MemorySettings
from turnmill.training.warm_start.demonstrations import demonstrate, spoken_chances
from turnmill.training.warm_start.expert import expert_of

LAST_TURN = MemorySettings()


def demonstrations(memory: MemorySettings = LAST_TURN, **settings: float):
    environment = create("babyai", "GoToObj", 16)
    return demonstrate(environment, expert_of(environment), WarmStart(**{"turns": 40, **settings}), memory)


def test_equal_settings_give_equal_demonstrations():
    assert demonstrations(seed=3) == demonstrations(seed=3)
    assert demonstrations(seed=3) != demonstrations(seed=4)


def test_whole_episodes_are_demonstrated_until_there_are_enough_turns():
    assert 40 <= len(demonstrations()) < 40 + 16


def test_a_demonstrated_turn_has_the_goal_the_last_turn_and_the_current_observation():
    first, second = demonstrations()[:2]

    assert [message["role"] for message in first.messages] == ["system", "user"]
    assert first.messages[0]["content"].startswith("goal: go to the ")
    assert second.messages[1:3] == (first.messages[1], {"role": "assistant", "content": first.answer})


def test_a_demonstrated_turn_has_as_many_past_turns_as_the_memory_of_the_agent():
    turns = demonstrations(MemorySettings(text_turns=2, thought_turns=0))

    assert max(len(turn.messages) for turn in turns) == 6
    assert turns[1].messages[2]["content"] in create("babyai", "GoToObj").actions
    assert {len(turn.messages) for turn in demonstrations(MemorySettings(text_turns=0))} == {2}


def test_a_malformed_response_has_no_action():
    environment = create("babyai", "GoToObj", 16)

    assert all(environment.parse_action(turn.answer) is None for turn in demonstrations(malformed_share=1.0))
    assert all(environment.parse_action(turn.answer) for turn in demonstrations(malformed_share=0.0))


def test_without_noise_the_expert_is_followed():
    for turn in demonstrations(action_noise=0.0, malformed_share=0.0):
        assert turn.chances[turn.spoken] == 1


def test_the_probabilities_of_actions_sum_to_one():
    chances = spoken_chances("up", ("up", "down"), WarmStart(action_noise=0.5, malformed_share=0.1))

    assert sum(chances.values()) == pytest.approx(1)
    assert chances["up"] == pytest.approx(0.9 * 0.75)
    assert chances["down"] == pytest.approx(0.9 * 0.25)
