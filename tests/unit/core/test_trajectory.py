import pickle

import pytest

from turnmill.core.errors import EnvironmentFailedError, RunFailedError
from turnmill.core.trajectory import Trajectory, Turn, in_full


def turn(reward: float = 0.0, **changes: object) -> Turn:
    return Turn(**{"prompt_ids": (1, 2), "response_ids": (3, 4), "log_probs": (-0.1, -0.2), "reward": reward} | changes)


def trajectory(*turns: Turn) -> Trajectory:
    return Trajectory("e", "babyai", "goto", seed=7, turns=turns, stop_reason="completed")


def test_a_trajectory_succeeds_by_its_last_reward():
    assert trajectory(turn(), turn(1.0)).success
    assert not trajectory(turn(1.0), turn(-0.1)).success
    assert not trajectory().success


def test_a_trajectory_sums_what_its_turns_hold():
    assert trajectory(turn(-0.25), turn(1.0)).reward == 0.75
    assert trajectory(turn(), turn()).num_response_tokens == 4
    assert trajectory(turn(), turn()).num_turns == 2


def test_log_probs_must_match_the_response_tokens():
    with pytest.raises(ValueError, match="2 response tokens and 1 log-probs"):
        turn(log_probs=(-0.1,))


@pytest.mark.parametrize(
    ("error", "stop_reason", "cause"),
    [(EnvironmentFailedError("it hung"), "failed", "environment"), (TimeoutError(), "timeout", "timeout")],
)
def test_an_episode_that_infrastructure_ended_is_never_a_success(error, stop_reason, cause):
    failed = Trajectory.from_error(error, episode_id="e", environment="x", task="", seed=0, turns=(turn(1.0),))

    assert (failed.stop_reason, failed.failure_cause) == (stop_reason, cause)
    assert failed.failure_message
    assert not failed.success


def test_a_failed_run_keeps_its_cause_between_processes():
    error = pickle.loads(pickle.dumps(RunFailedError("nothing moved", cause="stall")))

    assert (str(error), error.cause) == ("nothing moved", "stall")


def test_a_turn_that_was_kept_before_its_tool_answered_stands_for_itself_until_the_whole_turn_follows():
    asked, answered = turn(unanswered=True), turn(observation="4")

    assert in_full([asked]) == (asked,)
    assert in_full([asked, answered]) == (answered,)
    assert in_full([asked, answered, answered, asked]) == (answered, answered, asked)
    assert in_full([]) == ()
