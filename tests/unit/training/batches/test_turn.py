from dataclasses import replace

import pytest
import torch
from tensordict import TensorDict
from transfer_queue import KVBatchMeta

from turnmill.rollout.token_integrity import token_checksum
from turnmill.rollout.verlog.rows import TurnFacts
from turnmill.training.batches.turn import (
    TurnBatch,
    count_unsampled_tokens,
    in_order_of_time,
    turn_metrics,
    validation_metrics,
)


def meta(*keys: str) -> KVBatchMeta:
    return KVBatchMeta(partition_id="train", keys=list(keys), tags=[{"key": key} for key in keys])


def matrix(facts: list[TurnFacts]) -> torch.Tensor:
    return torch.stack([each.tensor() for each in facts])


def batch(facts: list[TurnFacts], bootstrap: list[TurnFacts]) -> TurnBatch:
    """Turns with responses of two tokens, and their bootstrap rows."""
    rows = len(facts) + len(bootstrap)
    mask_RG = torch.ones(rows, 3, dtype=torch.long)
    mask_RG[:, 2] = 0
    mask_RG[len(facts) :] = 0
    scores_RG = torch.zeros(len(facts), 3)
    return TurnBatch(
        meta=meta(*(str(i) for i in range(rows))),
        num_segments=len(bootstrap),
        num_turns=len(facts),
        facts_RF=matrix(facts + bootstrap),
        mask_RG=mask_RG,
        values_RG=torch.zeros(rows, 3),
        num_slots_R=torch.full((rows,), 3),
        response_lengths_R=torch.full((rows,), 2),
        prompt_lengths_R=torch.full((rows,), 10),
        scores_RG=scores_RG,
        old_log_probs_RG=scores_RG,
        ref_log_probs_RG=scores_RG,
    )


def test_rows_are_put_in_order_of_time_and_within_it_of_segments():
    ordered, num_segments = in_order_of_time(meta("b_0_1", "a_0_10", "a_0_1", "b_0_10", "a_0_2", "b_0_2"))

    assert ordered.keys == ["a_0_1", "b_0_1", "a_0_2", "b_0_2", "a_0_10", "b_0_10"]
    assert [tag["key"] for tag in ordered.tags] == ordered.keys
    assert num_segments == 2


def test_names_of_segments_may_hold_underscores():
    ordered, num_segments = in_order_of_time(meta("b_9_0_1", "b_9_0_0", "a_1_0_1", "a_1_0_0"))

    assert ordered.keys == ["a_1_0_0", "b_9_0_0", "a_1_0_1", "b_9_0_1"]
    assert num_segments == 2


def test_success_and_length_are_those_of_the_episodes_that_ended():
    solved = TurnFacts(reward=1.0, done=1, episode_length=4, episode_reward=0.9)
    lost = TurnFacts(reward=-0.1, done=1, truncated=1, valid=0, episode_length=16, episode_reward=-0.3)
    going_on = TurnFacts(reward=-0.1, valid=0, episode_reward=-0.1)
    turns = batch([solved, lost, going_on, replace(going_on, valid=1, reward=0)], [TurnFacts(bootstrap=1)] * 2)

    metrics = turn_metrics(turns, turns.scores_RG)

    assert metrics["turnmill/success"] == 0.5
    assert metrics["turnmill/episode_length"] == 10
    assert metrics["turnmill/reward_mean"] == pytest.approx(0.3)
    assert metrics["turnmill/turn_reward_mean"] == pytest.approx(0.2)
    assert metrics["turnmill/valid_action_ratio"] == 0.5
    assert (metrics["turnmill/episodes/completed"], metrics["turnmill/episodes/max_turns"]) == (1, 1)


def test_plans_and_second_thoughts_are_averaged_over_turns_and_no_bootstrap_row():
    thoughtful = TurnFacts(plan_length=30, backtrack_length=5)
    brief = TurnFacts(plan_length=12)
    turns = batch([thoughtful, brief, brief, brief], [TurnFacts(bootstrap=1)] * 2)

    metrics = turn_metrics(turns, turns.scores_RG)

    assert metrics["turnmill/plan_length"] == 16.5
    assert metrics["turnmill/backtrack_length"] == 1.25


def test_failures_stand_in_the_bootstrap_rows_and_are_told_by_cause():
    turns = batch([TurnFacts()] * 2, [TurnFacts(bootstrap=1, failures=3, inference_failures=1), TurnFacts(bootstrap=1)])

    metrics = turn_metrics(turns, turns.scores_RG)

    assert metrics["turnmill/episodes/failed"] == 3
    assert metrics["turnmill/failures/inference"] == 1
    assert metrics["turnmill/failures/environment"] == 2


def test_bootstrap_rows_count_for_no_turn_and_no_token():
    turns = batch([TurnFacts()] * 4, [TurnFacts(bootstrap=1, valid=0)] * 2)

    metrics = turn_metrics(turns, turns.scores_RG)

    assert (metrics["turnmill/turns"], metrics["turnmill/response_tokens"]) == (4, 8)
    assert metrics["turnmill/prompt_tokens"] == 40
    assert metrics["turnmill/valid_action_ratio"] == 1


def test_a_step_in_which_no_episode_ended_tells_no_success():
    turns = batch([TurnFacts()] * 2, [TurnFacts(bootstrap=1)])

    assert "turnmill/success" not in turn_metrics(turns, turns.scores_RG)


def test_rewards_are_followed_by_a_zero_row_for_each_bootstrap_row():
    turns = batch([TurnFacts()] * 2, [TurnFacts(bootstrap=1)] * 2)

    rewards_RG = turns.with_bootstrap_rows(torch.ones(2, 3))

    assert rewards_RG.sum(1).tolist() == [3, 3, 0, 0]


def test_a_validation_averages_over_whole_episodes():
    solved = TurnFacts(reward=1.0, done=1, valid=0.5, episode_length=4, episode_reward=0.9, failures=1)
    lost = TurnFacts(reward=0.0, done=1, truncated=1, valid=1.0, episode_length=16, episode_reward=-0.3)

    assert validation_metrics(matrix([solved, lost])) == pytest.approx(
        {
            "validation/episodes": 2,
            "validation/success": 0.5,
            "validation/reward": 0.3,
            "validation/episode_length": 10,
            "validation/valid_action_ratio": 0.75,
            "validation/failures": 1,
        }
    )


def test_the_time_of_segments_adds_up_over_them():
    of_segment = TurnFacts(bootstrap=1, generation_seconds=3.0, tools_seconds=2.0, loop_seconds=0.5)
    turns = batch([TurnFacts(), TurnFacts()], [of_segment, of_segment])

    metrics = turn_metrics(turns, torch.zeros(2, 3))

    assert metrics["turnmill/rollout_seconds/generation"] == 6.0
    assert metrics["turnmill/rollout_seconds/tools"] == 4.0
    assert metrics["turnmill/rollout_seconds/loop"] == 1.0
    assert metrics["turnmill/rollout_slots"] == 2


def test_turns_of_other_tokens_than_were_sampled_are_counted_in_tokens():
    facts = [
        TurnFacts(sampled=token_checksum([5, 6])),
        TurnFacts(sampled=token_checksum([5, 7])),
        TurnFacts(bootstrap=1),
    ]
    columns = {
        "responses": torch.nested.as_nested_tensor(
            [torch.tensor([5, 6])] * 2 + [torch.tensor([9])], layout=torch.jagged
        ),
        "response_mask": torch.nested.as_nested_tensor(
            [torch.tensor([1, 1])] * 2 + [torch.tensor([0])], layout=torch.jagged
        ),
        "turn_facts": matrix(facts),
    }

    assert count_unsampled_tokens(TensorDict(columns, batch_size=3), num_turns=2) == 2


def test_token_advantages_bear_the_names_of_their_turns():
    turns = batch([TurnFacts(slot=3, episode=1, turn=4), TurnFacts(slot=5)], [TurnFacts()])

    advantages = list(turns.token_advantages(torch.tensor([[0.5, -0.5, 9.0], [1.0, 2.0, 9.0]])))

    assert advantages == [("t3-1", 4, [0.5, -0.5]), ("t5-0", 0, [1.0, 2.0])]
