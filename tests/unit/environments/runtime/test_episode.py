import math
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.environments import Hostile, HostileOptions
from turnmill import environments
from turnmill.core.errors import EnvironmentFailedError
from turnmill.environments.runtime.episode import TurnEnvironment, is_success
from turnmill.jobs.environment import SuccessRule

_WORDS = ["THINK:", "ACTION:", "action:", "Action", "turn", "left", "go forward", "drop", ".", "_", "\n"]
_CHATTER = st.lists(st.sampled_from(_WORDS))


def episode(
    *, max_turns: int = 10, binary: bool = True, marker_required: bool = True, on_step: str = "none"
) -> TurnEnvironment:
    environment = Hostile(None, max_turns, HostileOptions(on_step=on_step))
    made = TurnEnvironment(environment, invalid_penalty=0.1, binary_reward=binary, marker_required=marker_required)
    made.reset(0)
    return made


@pytest.mark.feature("Verlog", "default action of an invalid response")
@pytest.mark.feature("Verlog", "penalty of an invalid response")
def test_an_invalid_response_executes_the_default_action_and_costs_the_penalty():
    result = episode().act("ACTION: fly")

    assert (result.action, result.valid, result.reward) == ("look", False, -0.1)
    assert result.observation == "seed 0 step 1"


def test_the_state_key_is_the_observation_unless_the_environment_overrides_it():
    class LastTurnCounter(Hostile):
        def state_key(self, observation: str) -> str:
            return observation.partition(" step")[0]

    made = TurnEnvironment(LastTurnCounter(None, 10, HostileOptions()), invalid_penalty=0.1, binary_reward=True)

    assert (made.reset(3).state_key, made.act("ACTION: look").state_key) == ("seed 3", "seed 3")
    assert episode().act("ACTION: look").state_key == "seed 0 step 1"


@pytest.mark.feature("Verlog", "penalty of an invalid response")
def test_the_penalty_replaces_a_reward_of_the_default_action():
    made = episode()
    made.environment.default_action = "win"

    result = made.act("nonsense")

    assert (result.action, result.reward, result.terminated) == ("win", -0.1, True)
    assert not result.success


@pytest.mark.feature("Verlog", "binary reward")
@pytest.mark.parametrize(("binary", "reward"), [(True, 1.0), (False, 0.5)])
def test_a_positive_reward_becomes_one_if_rewards_are_binary(binary, reward):
    result = episode(binary=binary).act("ACTION: win")

    assert result.reward == reward
    assert result.success


@pytest.mark.parametrize(("marker_required", "valid"), [(True, False), (False, True)])
def test_an_action_without_a_marker_is_valid_only_if_no_marker_is_required(marker_required, valid):
    assert episode(marker_required=marker_required).act(" Win\n").valid is valid


@pytest.mark.feature("Verlog", "success of an episode")
@pytest.mark.parametrize(
    ("rewards", "is_solved", "holding"),
    [
        ([0.0, 1.0], True, {"last_reward", "total_reward", "all_rewards", "environment"}),
        # In Crafter: an achievement, then death.
        ([1.0, -0.1], False, {"total_reward"}),
        ([-0.1, 0.0, 1.0], True, {"last_reward", "total_reward", "environment"}),
        ([0.0, 0.0], False, set()),
        ([-1.0, 0.5], False, {"last_reward"}),
    ],
)
def test_a_success_is_what_the_job_says(rewards, is_solved, holding):
    rules = get_args(SuccessRule)

    assert {rule for rule in rules if is_success(rule, rewards, is_solved=is_solved)} == holding


@pytest.mark.feature("Verlog", "the executed action in the memory")
@pytest.mark.parametrize(
    ("response", "remembered"),
    [
        ("THINK: thirsty. ACTION: Drink Water!", "THINK: thirsty.\nACTION: noop.\n"),
        ("THINK: wood. ACTION: Chop Tree.", "THINK: wood.\nACTION: do.\n"),
        ("sleep", "sleep\nACTION: sleep.\n"),
    ],
)
def test_in_crafter_a_response_is_remembered_with_the_action_that_was_executed(response, remembered):
    game = environments.create("crafter", max_turns=4)
    made = TurnEnvironment(game, invalid_penalty=0.1, binary_reward=False, marker_required=False)
    made.reset(0)

    assert made.act(response).remembered == remembered


def test_elsewhere_a_response_is_remembered_as_it_is():
    assert episode().act("hm. ACTION: fly").remembered == "hm. ACTION: fly"


def test_an_episode_is_truncated_at_its_turn_limit():
    made = episode(max_turns=2)

    first, second = made.act("ACTION: look"), made.act("ACTION: look")

    assert not first.done
    assert (second.done, second.truncated, second.terminated) == (True, True, False)


def test_an_episode_won_in_its_last_turn_is_won_and_not_truncated():
    result = episode(max_turns=1).act("ACTION: win")

    assert (result.terminated, result.truncated) == (True, False)


def test_acting_after_the_end_of_an_episode_fails():
    made = episode(max_turns=1)
    made.act("ACTION: look")

    with pytest.raises(EnvironmentFailedError, match="reset"):
        made.act("ACTION: look")


def test_a_nan_reward_fails_the_environment():
    with pytest.raises(EnvironmentFailedError, match="reward of nan"):
        episode(on_step="gives_nan").act("ACTION: misbehave")


def test_a_result_has_the_prompts_of_the_next_turn_and_metrics_of_the_response():
    result = episode().act("THINK: look, but win instead. ACTION: look")

    assert result.instruction_prompt == "Count. You stand at 1."
    assert result.compact_prompt == "goal: count"
    assert (result.plan_length, result.backtrack_length) == (3, 1)


@given(st.text() | _CHATTER.map(" ".join) | _CHATTER.map("".join))
def test_every_response_executes_an_allowed_action(text):
    environment = environments.create("babyai", task="GoToObj", max_turns=4)
    made = TurnEnvironment(environment, invalid_penalty=0.1, binary_reward=True)
    made.reset(0)

    result = made.act(text)

    assert result.action in environment.actions
    assert math.isfinite(result.reward)
    assert result.valid or (result.action == "go forward" and result.reward == -0.1)
