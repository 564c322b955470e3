"""Penalties, placement, normalisation and filter of GRL's rewards."""

import random
from dataclasses import replace

import pytest
import torch

from turnmill.jobs.grl_agent import RewardNormalization
from turnmill.rollout.grl.episode_summary import GrlEpisodeSummary
from turnmill.rollout.queue_payload import decode, encode
from turnmill.training.grl.scores import GroupSelection, Scores, normalise, place_scores, scores_of_tokens

REWARDS = [10.9, -1.0, -0.5, 9.9]


def rewards(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def episode(*turns: float, group: int = 0, tag: str = "a", penalties: tuple[float, ...] = ()) -> GrlEpisodeSummary:
    penalties = penalties or (0.0,) * len(turns)
    return GrlEpisodeSummary(
        episode_id="t", reward=sum(turns) + sum(penalties), stop_reason="completed", success=True,
        num_turns=len(turns), group=group, tag=tag, turn_rewards=turns, turn_penalties=penalties,
        response_ends=tuple((0, 3 * (number + 1) - 1) for number in range(len(turns))),
    )  # fmt: skip


@pytest.mark.feature("GRL", "normalisation")
@pytest.mark.parametrize(
    ("method", "values", "expected"),
    [
        ("identity", REWARDS, REWARDS),
        ("mean", REWARDS, [6.075, -5.825, -5.325, 5.075]),
        ("mean_std", REWARDS, [0.941333, -0.902595, -0.825119, 0.786381]),
        ("asym_clip", REWARDS, [0.941333, -0.902595, -0.825119, 0.786381]),
        ("mean_std", [0.0] * 7 + [10.0], [-0.353553] * 7 + [2.474873]),
        ("asym_clip", [0.0] * 7 + [10.0], [-0.353553] * 7 + [2.474873]),
        ("asym_clip", [0.0] * 11 + [10.0], [-0.288675] * 11 + [3.0]),
        ("asym_clip", [0.0] * 7 + [-10.0], [0.353553] * 7 + [-1.0]),
        ("mean_std", [4.0], [0.0]),
        ("mean", [4.0], [0.0]),
        ("mean_std", [4.0, 4.0], [0.0, 0.0]),
    ],
)
def test_rewards_are_normalised_as_grl_does(method: str, values: list[float], expected: list[float]):
    found = normalise(rewards(*values), [0] * len(values), method)

    assert found.tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.feature("GRL", "normalisation")
@pytest.mark.parametrize(
    ("grouping", "expected"),
    [
        ("state", [-1.0, 1.0, -2.0, 2.0]),
        ("inductive", [-4.0, -2.0, 1.0, 5.0]),
        ("batch", [-4.0, -2.0, 1.0, 5.0]),
    ],
)
def test_rewards_are_normalised_by_group_kind_or_batch(grouping: str, expected: list[float]):
    episodes = [episode(0, group=0), episode(2, group=0), episode(5, group=1), episode(9, group=1)]

    scores = Scores.of(episodes, RewardNormalization(grouping=grouping, method="mean"))

    assert scores.sums_K.tolist() == pytest.approx(expected)


@pytest.mark.feature("GRL", "several kinds of agents")
def test_inductive_grouping_normalises_each_kind_of_agent_separately():
    episodes = [episode(0, tag="a"), episode(2, tag="a"), episode(5, tag="b"), episode(9, tag="b")]

    scores = Scores.of(episodes, RewardNormalization(grouping="inductive", method="mean"))

    assert scores.sums_K.tolist() == pytest.approx([-1.0, 1.0, -2.0, 2.0])


@pytest.mark.feature("GRL", "format penalty")
def test_penalties_are_added_after_normalisation():
    episodes = [episode(1.0, 2.0, penalties=(-0.5, -0.5)), episode(1.0)]

    scores = Scores.of(episodes, RewardNormalization(method="mean"))

    assert scores.sums_K.tolist() == pytest.approx([1.0 - 1.0, -1.0])
    assert scores.filtered_K.tolist() == pytest.approx([1.0 - 1.0, -1.0])


@pytest.mark.parametrize("method", ["identity", "mean", "mean_std", "asym_clip"])
def test_turn_scores_sum_to_the_score_of_the_trajectory(method: str):
    episodes = [episode(*turns) for turns in [(1.0, 9.9), (-1.0,), (0.0, 0.0, -0.5), (9.9, 0.0)]]

    scores = Scores.of(episodes, RewardNormalization(method=method))

    assert scores.sums_K.tolist() == pytest.approx(normalise(rewards(*REWARDS), [0] * 4, method).tolist())
    # Differences between turns are scaled like the scores of trajectories.
    first, second = scores.turns_K[0].tolist()
    scale = 1.0 if method in ("identity", "mean") else 1 / (float(rewards(*REWARDS).std()) + 1e-6)
    assert second - first == pytest.approx(8.9 * scale)


@pytest.mark.feature("GRL", "position of scores")
def test_trajectory_scores_are_placed_at_the_end_and_turn_scores_at_the_ends_of_turns():
    episodes = [episode(1.0, 2.0), episode(4.0)]
    scores = Scores.of(episodes, RewardNormalization())
    rows_K = [(1,), (0,)]

    at_end = place_scores(scores.turns_K, episodes, rows_K, by_turn=False, lengths_R=[4, 7])
    by_turn = place_scores(scores.turns_K, episodes, rows_K, by_turn=True, lengths_R=[4, 7])

    lengths_R = torch.tensor([4, 7])
    assert scores_of_tokens(at_end, lengths_R).tolist() == [[0, 0, 0, 4, 0, 0, 0], [0, 0, 0, 0, 0, 0, 3]]
    assert scores_of_tokens(by_turn, lengths_R).tolist() == [[0, 0, 4, 0, 0, 0, 0], [0, 0, 1, 0, 0, 2, 0]]


def test_turn_scores_are_placed_in_the_row_of_their_turn():
    summary = replace(episode(1.0, 2.0), response_ends=((0, 1), (1, 0)))

    placed = place_scores([rewards(1.0, 2.0)], [summary], [(1, 0)], by_turn=True, lengths_R=[2, 2])

    assert placed == [{0: 2.0}, {1: 1.0}]


GROUPS = [0, 0, 1, 1, 2, 2, 3, 3]
GROUP_REWARDS = rewards(0, 1, 5, 5, 0, 9, 2, 4)


@pytest.mark.feature("GRL", "filter of groups")
@pytest.mark.parametrize(
    ("ratio", "kind", "kept"),
    [
        (0.5, "std", {2, 3}),
        (0.5, "std_rev", {1, 0}),
        (0.25, "std", {2}),
        (0.74, "std", {2, 3}),
        (0.1, "std", {2}),
        (1.0, "std", {0, 1, 2, 3}),
        (1.0, "std_rev", {0, 1, 2, 3}),
    ],
)
def test_the_filter_keeps_the_groups_with_the_largest_or_smallest_deviation(ratio: float, kind: str, kept: set[int]):
    assert GroupSelection.of(GROUP_REWARDS, GROUPS, ratio=ratio, kind=kind).kept == kept


@pytest.mark.feature("GRL", "metrics of a rollout")
def test_filter_metrics_cover_all_groups_and_the_kept_groups():
    metrics = GroupSelection.of(GROUP_REWARDS, GROUPS, ratio=0.25, kind="std").metrics

    root = 2**0.5
    assert metrics == pytest.approx(
        {
            "rollout/in_group_std": (1 / root + 0 + 9 / root + 2 / root) / 4,
            "rollout/in_group_max": (1 + 5 + 9 + 4) / 4,
            "rollout/in_group_mean": (0.5 + 5 + 4.5 + 3) / 4,
            "rollout/chosen_in_group_std": 9 / root,
            "rollout/chosen_in_group_max": 9,
            "rollout/chosen_in_group_mean": 4.5,
        }
    )


def test_a_summary_is_unchanged_by_encoding_and_decoding():
    summary = replace(episode(1.0, group=3, penalties=(-0.1,)), agent_metrics={"a/success": 1.0})

    assert decode(encode(summary), GrlEpisodeSummary) == summary


def kept_by_grl(episodes: list[GrlEpisodeSummary], method: str, *, size: int, kept: int, kind: str) -> set[int]:
    """Return the groups that GRL keeps: rewards are normalized by state, then penalties added, all in float32."""
    rewards = torch.tensor([sum(one.turn_rewards) for one in episodes]).view(-1, size)
    scores = rewards.clone()
    if method in ("mean_std", "asym_clip"):
        mean, std = rewards.mean(-1, keepdim=True), rewards.std(-1, keepdim=True)
        scores = torch.where(std > 1e-6, (rewards - mean) / (std + 1e-6), torch.zeros_like(rewards))
    if method == "mean":
        scores = rewards - rewards.mean(-1, keepdim=True)
    if method == "asym_clip":
        scores = scores.clamp(-1.0, 3.0)
    scores = scores + torch.tensor([sum(one.turn_penalties) for one in episodes]).view(-1, size)
    return set(scores.std(-1).topk(kept, largest=kind == "std").indices.tolist())


@pytest.mark.feature("GRL", "filter of groups")
@pytest.mark.parametrize("kind", ["std", "std_rev"])
@pytest.mark.parametrize("method", ["identity", "mean", "mean_std", "asym_clip"])
def test_the_filter_chooses_the_groups_that_grl_chooses(method: str, kind: str):
    generator, size, num_groups = random.Random(f"{method} {kind}"), 8, 12
    for _ in range(20):
        episodes = [
            episode(generator.gauss(0, 1 + group), group=group, penalties=(-generator.randint(0, 5) / 10,))
            for group in range(num_groups)
            for _ in range(size)
        ]

        scores = Scores.of(episodes, RewardNormalization(method=method))
        groups = [one.group for one in episodes]
        selection = GroupSelection.of(scores.filtered_K, groups, ratio=0.25, kind=kind)

        assert selection.kept == kept_by_grl(episodes, method, size=size, kept=3, kind=kind)
