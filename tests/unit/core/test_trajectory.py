import pickle

import pytest

from turnmill.core.errors import RunFailedError
from turnmill.core.trajectory import Turn, complete_turns


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
