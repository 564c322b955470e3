"""Figures by kind of agent: rows 110, 120 and 124 of the feature table."""

import pytest

from turnmill.rollout.grl.episode_summary import EpisodeSummary
from turnmill.training.grl.metrics import environment_metrics, step_metrics


def told(tag: str, reward: float, *, success: bool = False, turns: int = 2) -> dict:
    metrics = {f"{tag}/success": float(success), f"{tag}/num_actions": float(turns)}
    episode = EpisodeSummary(0, tag, (reward,) * turns, (0.0,) * turns, ((0, 1),) * turns, metrics)
    figures = {"valid_action": 0.5}
    return {"reward": reward, "success": success, "stop_reason": "completed", "figures": figures} | episode.as_field()


TOLD = [told("a", 1.0, success=True), told("a", 0.0, turns=4), told("b", 5.0, success=True)]


def test_figures_are_means_over_the_agents_of_a_tag():
    metrics = step_metrics(TOLD, [EpisodeSummary.read(each) for each in TOLD])

    assert {name: value for name, value in metrics.items() if name.startswith("train/")} == {
        "train/a/success": 0.5,
        "train/a/num_actions": 3.0,
        "train/b/success": 1.0,
        "train/b/num_actions": 2.0,
    }
    assert metrics["turnmill/success"] == pytest.approx(2 / 3)
    assert (metrics["turnmill/reward_mean"], metrics["turnmill/trajectories"]) == (2.0, 3.0)
    assert (metrics["turnmill/reward_quantile/0.5"], metrics["turnmill/episodes/completed"]) == (1.0, 3.0)


def test_a_validation_tells_figures_by_tag_and_the_mean_score():
    metrics = environment_metrics(TOLD)

    assert (metrics["val-env/a/success"], metrics["val-env/b/success"]) == (0.5, 1.0)
    assert metrics["val-env/test_score/unknown"] == 2.0
