from dataclasses import replace

import pytest
import torch
from transfer_queue import KVBatchMeta

from turnmill.core.trajectory import EpisodeSummary, SegmentMetadata, TurnMetadata
from turnmill.rollout.token_integrity import token_checksum
from turnmill.training.batches.trajectory_metrics import validation_metrics
from turnmill.training.batches.turn import TurnBatch, count_unsampled_tokens, sort_by_time, turn_metrics


def meta(*keys: str) -> KVBatchMeta:
    return KVBatchMeta(partition_id="train", keys=list(keys), tags=[{"key": key} for key in keys])


def batch(turns: list[TurnMetadata], segments: list[SegmentMetadata]) -> TurnBatch:
    """Turns with responses of two tokens, and their bootstrap rows."""
    rows = len(turns) + len(segments)
    mask_RG = torch.ones(rows, 3, dtype=torch.long)
    mask_RG[:, 2] = 0
    mask_RG[len(turns) :] = 0
    scores_RG = torch.zeros(len(turns), 3)
    return TurnBatch(
        meta=meta(*(str(i) for i in range(rows))),
        turns=tuple(turns),
        segments=tuple(segments),
        mask_RG=mask_RG,
        values_RG=torch.zeros(rows, 3),
        num_slots_R=torch.full((rows,), 3),
        response_lengths_R=torch.full((rows,), 2),
        prompt_lengths_R=torch.full((rows,), 10),
        scores_RG=scores_RG,
        old_log_probs_RG=scores_RG,
        ref_log_probs_RG=scores_RG,
    )


@pytest.mark.feature("Verlog", "a row per turn, in the order of time")
def test_rows_are_ordered_by_time_and_then_by_segment():
    ordered, num_segments = sort_by_time(meta("b_0_1", "a_0_10", "a_0_1", "b_0_10", "a_0_2", "b_0_2"))

    assert ordered.keys == ["a_0_1", "b_0_1", "a_0_2", "b_0_2", "a_0_10", "b_0_10"]
    assert [tag["key"] for tag in ordered.tags] == ordered.keys
    assert num_segments == 2


def test_segment_names_may_contain_underscores():
    ordered, num_segments = sort_by_time(meta("b_9_0_1", "b_9_0_0", "a_1_0_1", "a_1_0_0"))

    assert ordered.keys == ["a_1_0_0", "b_9_0_0", "a_1_0_1", "b_9_0_1"]
    assert num_segments == 2


def test_success_and_length_cover_only_episodes_that_ended():
    solved = TurnMetadata(reward=1.0, done=True, episode_length=4, episode_reward=0.9, success=True)
    unsolved = TurnMetadata(reward=-0.1, done=True, truncated=True, valid=False, episode_length=16, episode_reward=-0.3)
    unfinished = TurnMetadata(reward=-0.1, valid=False, episode_reward=-0.1)
    turns = batch([solved, unsolved, unfinished, replace(unfinished, valid=True, reward=0)], [SegmentMetadata()] * 2)

    metrics = turn_metrics(turns, turns.scores_RG, max_response_tokens=4)

    assert metrics["turnmill/success"] == 0.5
    assert metrics["turnmill/episode_length"] == 10
    assert metrics["turnmill/reward_mean"] == pytest.approx(0.3)
    assert metrics["turnmill/turn_reward_mean"] == pytest.approx(0.2)
    assert metrics["turnmill/valid_action_ratio"] == 0.5
    assert (metrics["turnmill/episodes/completed"], metrics["turnmill/episodes/max_turns"]) == (1, 1)


@pytest.mark.feature("Verlog", "metrics of behaviour")
def test_plan_and_backtrack_lengths_are_averaged_over_turns_without_bootstrap_rows():
    thoughtful = TurnMetadata(plan_length=30, backtrack_length=5)
    brief = TurnMetadata(plan_length=12)
    turns = batch([thoughtful, brief, brief, brief], [SegmentMetadata()] * 2)

    metrics = turn_metrics(turns, turns.scores_RG, max_response_tokens=4)

    assert metrics["turnmill/plan_length"] == 16.5
    assert metrics["turnmill/backtrack_length"] == 1.25


def test_lengths_are_divided_by_the_outcome_of_episodes_that_ended():
    turns = batch(
        [
            TurnMetadata(episode_id="a", reward=0.0),
            TurnMetadata(episode_id="b", reward=0.0),
            TurnMetadata(episode_id="a", reward=1.0, done=True, episode_length=4, success=True),
            TurnMetadata(episode_id="c", reward=0.0, done=True, episode_length=16),
        ],
        [SegmentMetadata()] * 2,
    )
    turns = replace(turns, response_lengths_R=torch.tensor([2, 9, 4, 7, 1, 1]))

    metrics = turn_metrics(turns, turns.scores_RG, max_response_tokens=7)

    assert (metrics["turnmill/episode_length_solved"], metrics["turnmill/episode_length_unsolved"]) == (4, 16)
    assert (metrics["turnmill/response_length_solved"], metrics["turnmill/response_length_unsolved"]) == (3, 7)
    # Bootstrap rows are no responses.
    assert metrics["turnmill/truncated_ratio"] == 2 / 4


def test_failures_are_read_from_bootstrap_rows_and_counted_by_cause():
    turns = batch(
        [TurnMetadata()] * 2,
        [SegmentMetadata(failure_causes=("environment", "inference", "environment")), SegmentMetadata()],
    )

    metrics = turn_metrics(turns, turns.scores_RG, max_response_tokens=4)

    assert metrics["turnmill/episodes/failed"] == 3
    assert metrics["turnmill/failures/inference"] == 1
    assert metrics["turnmill/failures/environment"] == 2


def test_bootstrap_rows_are_not_counted_as_turns_or_tokens():
    turns = batch([TurnMetadata()] * 4, [SegmentMetadata()] * 2)

    metrics = turn_metrics(turns, turns.scores_RG, max_response_tokens=4)

    assert (metrics["turnmill/turns"], metrics["turnmill/response_tokens"]) == (4, 8)
    assert metrics["turnmill/prompt_tokens"] == 40
    assert metrics["turnmill/valid_action_ratio"] == 1


def test_a_step_in_which_no_episode_ended_has_no_success_metric():
    turns = batch([TurnMetadata()] * 2, [SegmentMetadata()])

    assert "turnmill/success" not in turn_metrics(turns, turns.scores_RG, max_response_tokens=4)


def test_rewards_get_a_zero_row_for_each_bootstrap_row():
    turns = batch([TurnMetadata()] * 2, [SegmentMetadata()] * 2)

    rewards_RG = turns.with_bootstrap_rows(torch.ones(2, 3))

    assert rewards_RG.sum(1).tolist() == [3, 3, 0, 0]


@pytest.mark.feature("Verlog", "validation on whole episodes")
def test_a_validation_averages_over_whole_episodes():
    solved = EpisodeSummary(
        episode_id="v0-0", reward=0.9, stop_reason="completed", success=True, num_turns=4,
        metrics={"valid_action": 0.5, "failures": 1.0},
    )  # fmt: skip
    unsolved = EpisodeSummary(
        episode_id="v1-0", reward=-0.3, stop_reason="max_turns", success=False, num_turns=16,
        metrics={"valid_action": 1.0, "failures": 0.0},
    )  # fmt: skip

    assert validation_metrics([solved, unsolved]) == pytest.approx(
        {
            "validation/episodes": 2,
            "validation/success": 0.5,
            "validation/reward": 0.3,
            "validation/episode_length": 10,
            "validation/valid_action_ratio": 0.75,
            "validation/failures": 1,
        }
    )


def test_rollout_seconds_are_summed_over_segments():
    segment = SegmentMetadata(seconds={"generation": 3.0, "tools": 2.0, "loop": 0.5})
    turns = batch([TurnMetadata(), TurnMetadata()], [segment, segment])

    metrics = turn_metrics(turns, torch.zeros(2, 3), max_response_tokens=4)

    assert metrics["turnmill/rollout_seconds/generation"] == 6.0
    assert metrics["turnmill/rollout_seconds/tools"] == 4.0
    assert metrics["turnmill/rollout_seconds/loop"] == 1.0
    assert metrics["turnmill/rollout_slots"] == 2


def test_tokens_of_turns_with_a_wrong_checksum_are_counted_as_unsampled():
    turns = [
        TurnMetadata(sampled_checksum=token_checksum([5, 6])),
        TurnMetadata(sampled_checksum=token_checksum([5, 7])),
    ]
    responses = torch.nested.as_nested_tensor([torch.tensor([5, 6])] * 2 + [torch.tensor([9])], layout=torch.jagged)
    masks = torch.nested.as_nested_tensor([torch.tensor([1, 1])] * 2 + [torch.tensor([0])], layout=torch.jagged)

    assert count_unsampled_tokens(responses, masks, turns) == 2


def test_token_advantages_have_episode_id_and_turn():
    turns = batch([TurnMetadata(episode_id="t3-1", turn=4), TurnMetadata(episode_id="t5-0")], [SegmentMetadata()])

    advantages = turns.token_advantages(torch.tensor([[0.5, -0.5, 9.0], [1.0, 2.0, 9.0]]))

    assert [(episode, turn, values.tolist()) for episode, turn, values in advantages] == [
        ("t3-1", 4, [0.5, -0.5]),
        ("t5-0", 0, [1.0, 2.0]),
    ]


def test_only_the_row_of_the_last_turn_is_done():
    turns = batch([TurnMetadata(done=True), TurnMetadata()], [SegmentMetadata()])

    assert turns.dones_R.tolist() == [1, 0, 0]
