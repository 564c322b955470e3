import pickle

import pytest

from turnmill.core.errors import RunFailedError
from turnmill.core.trajectory import EpisodeSummary, Turn, complete_turns


def turn(reward: float = 0.0, **changes: object) -> Turn:
    return Turn(**{"prompt_ids": (1, 2), "response_ids": (3, 4), "log_probs": (-0.1, -0.2), "reward": reward} | changes)


def test_log_probs_must_match_the_response_tokens():
    with pytest.raises(ValueError, match="2 response tokens and 1 log-probs"):
        turn(log_probs=(-0.1,))


def test_a_run_failed_error_keeps_its_cause_when_pickled():
    error = pickle.loads(pickle.dumps(RunFailedError("nothing moved", cause="stall")))

    assert (str(error), error.cause) == ("nothing moved", "stall")


def test_an_unanswered_turn_is_dropped_once_the_complete_one_follows():
    asked, answered = turn(unanswered=True), turn(observation="4")

    assert complete_turns([asked]) == (asked,)
    assert complete_turns([asked, answered]) == (answered,)
    assert complete_turns([asked, answered, answered, asked]) == (answered, answered, asked)
    assert complete_turns([]) == ()


def test_a_summary_is_restored_with_all_its_fields():
    summary = EpisodeSummary(
        episode_id="a", reward=0.5, stop_reason="completed", success=True, num_turns=2, num_rows=3,
        policy_versions=(1, 2), sampled_tokens=b"t", seconds={"tools": 1.0}, metrics={"valid": 1.0}, prediction="42",
        row_rewards=True, row_states=("x", "y"),
    )  # fmt: skip

    assert pickle.loads(pickle.dumps(summary)) == summary
