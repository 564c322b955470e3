"""Metrics by kind of agent."""

from dataclasses import replace

import pytest

from turnmill.rollout.grl.episode_summary import GrlEpisodeSummary
from turnmill.training.grl.metrics import environment_metrics, step_metrics


def summary(tag: str, reward: float, *, success: bool = False, turns: int = 2) -> GrlEpisodeSummary:
    return GrlEpisodeSummary(
        episode_id="t", reward=reward, stop_reason="completed", success=success, num_turns=turns,
        metrics={"valid_action": 0.5}, group=0, tag=tag, turn_rewards=(reward,) * turns, turn_penalties=(0.0,) * turns,
        response_ends=((0, 1),) * turns,
        agent_metrics={f"{tag}/success": float(success), f"{tag}/num_actions": float(turns)},
    )  # fmt: skip


SUMMARIES = [summary("a", 1.0, success=True), summary("a", 0.0, turns=4), summary("b", 5.0, success=True)]


@pytest.mark.feature("GRL", "metrics of a rollout")
def test_metrics_are_means_over_the_agents_of_a_tag():
    metrics = step_metrics(SUMMARIES, max_response_tokens=4)

    assert {name: value for name, value in metrics.items() if name.startswith("train/")} == {
        "train/a/success": 0.5,
        "train/a/num_actions": 3.0,
        "train/b/success": 1.0,
        "train/b/num_actions": 2.0,
        "train/response_length": 0.0,
    }
    assert metrics["turnmill/success"] == pytest.approx(2 / 3)
    assert (metrics["turnmill/reward_mean"], metrics["turnmill/trajectories"]) == (2.0, 3.0)
    assert (metrics["turnmill/reward_quantile/0.5"], metrics["turnmill/episodes/completed"]) == (1.0, 3.0)


def test_lengths_are_divided_by_outcome_and_compared_with_the_limit():
    solved = replace(SUMMARIES[0], response_ends=((0, 1), (0, 5)), response_lengths=(2, 4))
    unsolved = replace(SUMMARIES[1], response_ends=((0, 3),) * 4, response_lengths=(3, 3, 3, 3))

    metrics = step_metrics([solved, unsolved], max_response_tokens=4)

    assert (metrics["turnmill/episode_length_solved"], metrics["turnmill/episode_length_unsolved"]) == (2, 4)
    assert metrics["turnmill/response_length_solved"] == metrics["turnmill/response_length_unsolved"] == 3
    assert metrics["turnmill/truncated_ratio"] == pytest.approx(1 / 6)
    assert metrics["train/response_length"] == (6 + 12) / 2


@pytest.mark.feature("GRL", "metrics of a rollout")
@pytest.mark.feature("GRL", "validations played several times")
def test_a_validation_has_metrics_by_tag_and_the_mean_score():
    metrics = environment_metrics(SUMMARIES)

    assert (metrics["val-env/a/success"], metrics["val-env/b/success"]) == (0.5, 1.0)
    assert metrics["val-env/test_score/unknown"] == 2.0
