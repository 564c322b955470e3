"""Prompts, parsing, budgets and penalties of GRL's base agent."""

from typing import Any

import pytest

from support.agents import Counter, response_text
from turnmill.environments.grl import EnvOutput
from turnmill.environments.grl.response_parser import parse_response


def agent(**config: Any) -> Counter:
    settings = {"max_turns": 3, "max_actions_all_turns": 4, "max_actions_per_turn": 2} | config
    return Counter({"agent_config": settings}, seed=7, tag="counter")


def play(*responses: str, **config: Any) -> tuple[Counter, list[EnvOutput]]:
    counter = agent(**config)
    counter.get_llm_prompts(counter.reset())
    return counter, [counter.get_env_outputs(response) for response in responses]


def test_the_first_prompt_contains_task_state_action_budget_and_format():
    counter = agent()

    system, user = counter.get_llm_prompts(counter.reset())

    assert system == {"role": "system", "content": "You count."}
    assert user["content"].startswith("Count to 3.\nTurn 1:\nState:\nat 0 of seed 7\nYou have 4 actions remaining.")
    assert "<think> [your thoughts] </think> <answer> [your answer] </answer>" in user["content"]
    assert "100 tokens" in user["content"]


@pytest.mark.feature("GRL", "opening tag of the response")
@pytest.mark.parametrize(
    ("config", "prefix"),
    [
        ({}, "<think>"),
        ({"enable_think": False}, "<answer>"),
        ({"use_think_answer_token": False}, ""),
    ],
)
def test_the_prompt_ends_with_the_opening_tag_of_the_response(config: dict[str, Any], prefix: str):
    assert agent(**config).prefix == prefix


@pytest.mark.feature("GRL", "reward in the prompt")
def test_the_prompt_of_a_later_turn_begins_with_the_previous_reward():
    counter, (output,) = play(response_text("1", "0"))

    *_, assistant, user = counter.get_llm_prompts(output)

    assert assistant == {"role": "assistant", "content": "<think>hm</think><answer>1 || 0</answer>"}
    assert user["content"].startswith("Reward: \n1\n Turn 2:\nState:\nat 0\nYou have 2 actions remaining.")


@pytest.mark.feature("GRL", "parsing of actions")
@pytest.mark.parametrize(
    ("response", "actions", "text"),
    [
        ("<think>a</think> <answer>Up||Down</answer>", ("Up", "Down"), "<think>a</think><answer>Up || Down</answer>"),
        ("<think>a</think><answer> 1 || 2 ||| 3</answer>x", ("1", "2"), "<think>a</think><answer>1 || 2</answer>"),
        ("<think>a\nb</think>\n<answer></answer>", (), "<think>a\nb</think><answer></answer>"),
        ("<think><think>a</think><answer>Up<|im_end|></answer>", ("Up",), "<think>a</think><answer>Up</answer>"),
        ("<think>a</think><answer>1</answer><answer>2</answer>", ("1",), "<think>a</think><answer>1</answer>"),
        ("<think>a</think><answer>Up", (), "<think>a</think><answer>Up"),
        ("<answer>Up</answer>", (), "<answer>Up</answer>"),
    ],
)
def test_a_response_is_parsed_and_normalized(response: str, actions: tuple[str, ...], text: str):
    answer = parse_response(response, think=True, separator="||", max_actions=2)

    assert (answer.actions, answer.text) == (actions, text)


def test_a_response_without_thinking_consists_of_the_answer():
    answer = parse_response("<answer>1;2</answer>", think=False, separator=";", max_actions=5)

    assert (answer.actions, answer.text) == (("1", "2"), "<answer>1 ; 2</answer>")


@pytest.mark.feature("GRL", "parsing of actions")
def test_actions_beyond_the_limit_per_turn_are_dropped():
    counter, (output,) = play(response_text("1", "1", "2"))

    assert (output.reward, counter.num_actions, output.state) == (2.0, 2, "at 1")


def test_invalid_actions_are_skipped_and_not_counted():
    counter, (output,) = play(response_text("jump", "2"))

    assert (output.reward, counter.num_actions, output.done) == (2.0, 1, False)


@pytest.mark.feature("GRL", "budget of actions")
def test_an_episode_is_truncated_when_its_action_budget_is_used_up():
    counter, outputs = play(response_text("1", "1"), response_text("1"), response_text("1", "2"))

    assert [output.done for output in outputs] == [False, False, True]
    assert outputs[-1].truncated
    # The second action of the last turn exceeds the budget.
    assert (counter.num_actions, outputs[-1].state) == (4, "at 1")


def test_an_episode_is_truncated_after_its_last_turn():
    _, outputs = play(response_text("1"), response_text("1"), response_text("1"))

    assert [(output.truncated, output.terminated) for output in outputs] == [(False, False)] * 2 + [(True, False)]


def test_an_episode_ends_when_the_environment_terminates_it():
    counter, (output,) = play(response_text("3", "1"))

    assert (output.terminated, output.truncated, counter.num_actions) == (True, False, 1)
    with pytest.raises(RuntimeError, match="reset it first"):
        counter.get_env_outputs(response_text("1"))


@pytest.mark.feature("GRL", "format penalty")
@pytest.mark.parametrize(
    ("responses", "penalty"),
    [
        ([response_text("1")], 0.0),
        ([response_text("jump", "fly")], -0.5),
        ([response_text("1", "fly"), response_text("1")], -0.5),
        (["no form at all", response_text()], -1.0),
    ],
)
def test_a_turn_with_format_errors_is_penalized_once(responses: list[str], penalty: float):
    counter, _ = play(*responses, format_penalty=-0.5)

    assert counter.get_final_rollout_states()["penalty"] == penalty


def test_the_final_state_has_the_turns_and_the_metrics_by_tag():
    counter, _ = play(response_text("1", "0"), "nothing", response_text("2", "3"))

    final = counter.get_final_rollout_states()

    assert (final["env_id"], final["group_id"], final["tag"]) == (0, 0, "counter")
    assert [(turn["actions"], turn["actions_left"], turn["reward"]) for turn in final["history"]] == [
        (["1", "0"], 2, 1.0), ([], 2, 0.0), (["2", "3"], 0, 5.0),
    ]  # fmt: skip
    assert final["history"][1]["llm_raw_response"] == "nothing"
    assert [message["role"] for message in counter.get_messages()] == [
        "system",
        "user",
        "assistant",
        "assistant",
        "assistant",
    ]
    # Of the last action of each turn: 0, none, 3.
    assert final["metrics"] == {
        "counter/success": 1.0,
        "counter/num_actions": 4.0,
        "counter/action_is_effective": pytest.approx(1 / 3),
        "counter/action_is_valid": pytest.approx(2 / 3),
    }


def test_a_reset_clears_the_previous_episode():
    counter, _ = play("nothing", response_text("3"))

    counter.get_llm_prompts(counter.reset(8))

    assert (counter.penalty, counter.num_actions, counter.done, counter.turns) == (0.0, 0, False, [])
    assert "seed 8" in counter.get_messages()[1]["content"]


def test_settings_may_use_the_names_of_a_job_file():
    assert Counter({"agentConfig": {"maxTurns": 5}}, tag="x").agent_config.max_turns == 5
