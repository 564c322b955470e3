from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest

from turnmill.core.trajectory import StopReason, Turn
from turnmill.rollout.verlog.rows import FACTS, TurnFacts, bootstrap_row, turn_row


def turn(*, reward: float = 0.0, valid: bool = True, done: bool = False, **metrics: float) -> Turn:
    return Turn((1, 2), (3, 4, 5), (-0.1, -0.2, -0.3), reward=reward, valid=valid, done=done, metrics=metrics)


def slot(*, number: int = 0, reward: float = 0.0, reason: StopReason | None = None) -> Any:
    return SimpleNamespace(index=5, episode=2, turn=number, reward=reward, stop_reason=lambda _: reason)


def test_facts_travel_in_the_order_of_their_fields():
    facts = TurnFacts(**{field.name: number for number, field in enumerate(fields(TurnFacts))})

    tensor = facts.tensor()

    assert tensor.tolist() == list(range(len(FACTS)))
    assert all(tensor[position] == getattr(facts, name) for name, position in FACTS.items())


def test_the_reward_of_a_turn_stands_on_its_last_token():
    row = turn_row(turn(reward=0.5), slot=slot(), time=0).as_dict()

    assert row["rm_scores"].tolist() == [0, 0, 0.5]
    assert row["response_mask"].tolist() == [1, 1, 1]


def test_the_reward_of_a_later_turn_does_not_replace_it():
    row = turn_row(turn(reward=0.5), slot=slot(), time=0)

    # What verl does to the rows of one agent loop where the last has a score.
    row.reward_score = 9.0

    assert row.as_dict()["rm_scores"].tolist() == [0, 0, 0.5]


def test_tokens_and_log_probs_are_those_of_the_turn():
    row = turn_row(turn(), slot=slot(), time=0).as_dict()

    assert (row["prompts"].tolist(), row["responses"].tolist()) == ([1, 2], [3, 4, 5])
    assert row["rollout_log_probs"].tolist() == pytest.approx([-0.1, -0.2, -0.3])
    assert "facts" not in row


def test_the_last_turn_of_an_episode_tells_its_length_and_reward():
    over = slot(number=6, reward=1.2, reason="max_turns")

    row = turn_row(turn(done=True), slot=over, time=3)

    assert (row.facts.slot, row.facts.episode, row.facts.turn, row.facts.time) == (5, 2, 6, 3)
    assert (row.facts.episode_length, row.facts.episode_reward, row.facts.truncated) == (7, 1.2, 1)


def test_a_turn_in_the_middle_tells_no_length():
    assert turn_row(turn(), slot=slot(number=6), time=3).facts.episode_length == 0


def test_the_row_of_an_episode_tells_the_figures_of_all_its_turns():
    episode = [turn(valid=False, reward=-0.1), turn(), turn(reward=1.0, done=True)]

    row = turn_row(episode[-1], slot=slot(), time=0, episode=episode, failures=["environment", "inference"])

    assert row.facts.valid == pytest.approx(2 / 3)
    assert row.facts.episode_reward == pytest.approx(0.9)
    assert (row.facts.episode_length, row.facts.failures, row.facts.inference_failures) == (3, 2, 1)


def test_a_bootstrap_row_is_a_prompt_with_a_token_that_nobody_sampled():
    seconds = {"generation": 3.0, "tools": 2.0, "loop": 0.5}
    row = bootstrap_row([1, 2, 3], 9, slot=slot(), time=8, failures=["inference"], seconds=seconds)

    stored = row.as_dict()
    assert (stored["prompts"].tolist(), stored["responses"].tolist()) == ([1, 2, 3], [9])
    assert stored["response_mask"].tolist() == [0]
    assert stored["rm_scores"].tolist() == [0]
    assert stored["turn_facts"][FACTS["bootstrap"]] == 1
    assert stored["turn_facts"][FACTS["inference_failures"]] == 1
    assert stored["turn_facts"][FACTS["generation_seconds"]] == 3.0
    assert stored["turn_facts"][FACTS["tools_seconds"]] == 2.0
    assert stored["turn_facts"][FACTS["loop_seconds"]] == 0.5


def test_a_row_tells_which_policies_sampled_it():
    sampled = Turn((1,), (2,), policy_version=7, metrics={"min_policy_version": 6})

    row = turn_row(sampled, slot=slot(), time=0)

    assert (row.extra_fields["min_global_steps"], row.extra_fields["max_global_steps"]) == (6, 7)
