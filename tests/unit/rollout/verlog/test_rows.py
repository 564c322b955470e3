from types import SimpleNamespace
from typing import Any

import pytest

from turnmill.core.trajectory import SegmentMetadata, StopReason, Turn, TurnMetadata
from turnmill.rollout.queue_payload import TURN_METADATA, decode
from turnmill.rollout.timing import Timing
from turnmill.rollout.token_integrity import pack_tokens
from turnmill.rollout.verlog.rows import bootstrap_row, episode_summary, turn_row


def turn(*, reward: float = 0.0, valid: bool = True, done: bool = False, **metrics: float) -> Turn:
    return Turn((1, 2), (3, 4, 5), (-0.1, -0.2, -0.3), reward=reward, valid=valid, done=done, metrics=metrics)


def slot(*, number: int = 0, reward: float = 0.0, reason: StopReason | None = None, success: bool = False) -> Any:
    return SimpleNamespace(
        episode_name="t5-2",
        turn=number,
        reward=reward,
        success=success,
        timing=Timing(lambda: 0.0),
        stop_reason=lambda _: reason,
    )


def test_the_reward_of_a_turn_is_placed_on_its_last_token():
    row = turn_row(turn(reward=0.5), slot=slot()).as_dict()

    assert row["rm_scores"].tolist() == [0, 0, 0.5]
    assert row["response_mask"].tolist() == [1, 1, 1]


def test_the_reward_of_a_later_turn_does_not_replace_it():
    row = turn_row(turn(reward=0.5), slot=slot())

    # verl does this to every row of an agent loop if the last one has a score.
    row.reward_score = 9.0

    assert row.as_dict()["rm_scores"].tolist() == [0, 0, 0.5]


def test_tokens_and_log_probs_are_those_of_the_turn():
    row = turn_row(turn(), slot=slot()).as_dict()

    assert (row["prompts"].tolist(), row["responses"].tolist()) == ([1, 2], [3, 4, 5])
    assert row["rollout_log_probs"].tolist() == pytest.approx([-0.1, -0.2, -0.3])
    assert "metadata" not in row


def test_metadata_is_encoded_in_the_row():
    row = turn_row(turn(reward=0.5, plan_length=3), slot=slot())

    assert decode(row.as_dict()[TURN_METADATA], TurnMetadata) == row.metadata
    assert row.metadata == TurnMetadata(episode_id="t5-2", reward=0.5, plan_length=3)


def test_the_last_turn_of_an_episode_has_its_length_and_reward():
    last = slot(number=6, reward=1.2, reason="max_turns")

    metadata = turn_row(turn(done=True), slot=last).metadata

    assert metadata == TurnMetadata(
        episode_id="t5-2", turn=6, done=True, truncated=True, episode_length=7, episode_reward=1.2
    )


def test_a_turn_in_the_middle_of_an_episode_has_no_length():
    metadata = turn_row(turn(), slot=slot(number=6)).metadata

    assert isinstance(metadata, TurnMetadata)
    assert metadata.episode_length == 0


def test_the_summary_of_an_episode_covers_all_its_turns():
    episode = [turn(valid=False, reward=-0.1), turn(), turn(reward=1.0, done=True)]

    summary = episode_summary(episode, slot=slot(reason="completed", success=True), num_failures=2)

    assert summary.metrics["valid_action"] == pytest.approx(2 / 3)
    assert summary.reward == pytest.approx(0.9)
    assert (summary.num_turns, summary.success, summary.stop_reason) == (3, True, "completed")
    assert summary.metrics["failures"] == 2
    assert summary.sampled_tokens == pack_tokens([3, 4, 5] * 3)


@pytest.mark.feature("Verlog", "bootstrap rows without an action")
def test_a_bootstrap_row_is_a_prompt_with_a_token_that_no_policy_generated():
    seconds = {"generation": 3.0, "tools": 2.0, "loop": 0.5}
    row = bootstrap_row([1, 2, 3], 9, failure_causes=["inference"], seconds=seconds)

    stored = row.as_dict()
    assert (stored["prompts"].tolist(), stored["responses"].tolist()) == ([1, 2, 3], [9])
    assert stored["response_mask"].tolist() == [0]
    assert stored["rm_scores"].tolist() == [0]
    assert decode(stored[TURN_METADATA], SegmentMetadata) == SegmentMetadata(
        failure_causes=("inference",), seconds=seconds
    )


def test_a_row_has_the_versions_of_the_policies_that_sampled_it():
    sampled = Turn((1,), (2,), policy_version=7, metrics={"min_policy_version": 6})

    row = turn_row(sampled, slot=slot())

    assert (row.extra_fields["min_global_steps"], row.extra_fields["max_global_steps"]) == (6, 7)
