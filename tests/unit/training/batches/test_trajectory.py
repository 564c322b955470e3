import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

from turnmill.core.errors import RunFailedError
from turnmill.core.trajectory import EpisodeFailure, EpisodeSummary
from turnmill.jobs.trajectory_algorithms import (
    Dapo,
    GigPo,
    Grpo,
    ReinforcePlusPlusBaseline,
    Rloo,
    TrajectoryAlgorithmSettings,
)
from turnmill.rollout.failure import FAILED, FAILURE
from turnmill.rollout.queue_payload import encode
from turnmill.rollout.row_tags import EPISODE
from turnmill.training.advantages.gae import outcome_advantages
from turnmill.training.advantages.rows import Rows
from turnmill.training.algorithms import trajectory_algorithm_of
from turnmill.training.batches.trajectory import DROPPED, Dropped, TrajectoryBatch, last_rows, read_summaries, split
from turnmill.training.batches.trajectory_metrics import agent_metrics, trajectory_metrics, validation_metrics


def batch(keys: list[str], failed: dict[str, str]) -> KVBatchMeta:
    """Return a step's batch as the TransferQueue returns it; `failed` maps keys of failed trajectories to causes."""
    tags = [
        {"status": FAILED, FAILURE: encode(EpisodeFailure(key, failed[key], "broke", 1, {}))}
        if key in failed
        else {"status": "success"}
        for key in keys
    ]
    return KVBatchMeta(partition_id="train", keys=keys, tags=tags)


def step(tasks: int, samples: int) -> list[str]:
    return [f"uid{task}_{sample}_0" for task in range(tasks) for sample in range(samples)]


def advantages(
    keys: list[str], rewards: dict[str, float], algorithm: TrajectoryAlgorithmSettings | None = None
) -> dict[str, float]:
    """Return each row's advantage, from a reward at its last token and a penalty at every token."""
    scores_RG = torch.zeros(len(keys), 3)
    scores_RG[:, -1] = torch.tensor([rewards[key] for key in keys])
    penalties_RG = torch.tensor([[0.001 * (len(key) + int(key[3])) * (g + 1) for g in range(3)] for key in keys])
    rows = Rows(
        keys, torch.full((len(keys),), 3), torch.ones_like(scores_RG), scores_RG, scores_RG - penalties_RG,
        states_R=["start"] * len(keys),
    )  # fmt: skip
    found_RG, _ = trajectory_algorithm_of(algorithm or Grpo()).advantages(rows)
    assert bool((found_RG == found_RG[:, :1]).all())
    return dict(zip(keys, found_RG[:, 0].tolist(), strict=True))


@pytest.mark.parametrize(
    "algorithm",
    [Grpo(), Grpo(baseline="step"), Grpo(normalise=False), Rloo(), ReinforcePlusPlusBaseline(), Dapo(), GigPo()],
    ids=["grpo", "grpo over the step", "grpo without normalisation", "rloo", "reinforce++ baseline", "dapo", "gigpo"],
)
@pytest.mark.parametrize("seed", range(3))
def test_failed_trajectories_do_not_change_the_advantages_of_the_others(algorithm, seed):
    chance = random.Random(seed)
    keys = step(tasks=16, samples=8)
    failed = {key: "tool_connection" for key in keys if chance.random() < 0.15}
    rewards = {key: float(chance.random() < 0.4) for key in keys}
    assert 5 < len(failed) < 40

    surviving = split(batch(keys, failed)).survivors.keys
    with_failures = advantages(surviving, rewards, algorithm)
    without_failures = advantages([key for key in keys if key not in failed], rewards, algorithm)

    assert with_failures.keys() == without_failures.keys() == set(keys) - set(failed)
    assert max(abs(with_failures[key] - without_failures[key]) for key in with_failures) < 1e-6


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_outcome_advantages_are_those_of_verl_in_every_digit(seed: int, normalise: bool):
    chance = random.Random(seed)
    groups = [f"group{chance.randrange(30)}" for _ in range(200)]
    rewards = torch.tensor([chance.choice([0.0, 1.0, chance.gauss(0, 30)]) for _ in groups])

    found = outcome_advantages(rewards, groups, normalise=normalise)

    expected, _ = compute_grpo_outcome_advantage(
        rewards[:, None], torch.ones(200, 1), np.array(groups, dtype=object), norm_adv_by_std_in_grpo=normalise
    )
    alone = torch.tensor([groups.count(group) == 1 for group in groups])
    assert torch.equal(found, expected[:, 0].masked_fill(alone, 0.0))


def test_outcome_advantages_follow_the_grpo_formula():
    found = outcome_advantages(torch.tensor([1.0, 0.0, 0.0, 1.0, 5.0]), ["a", "a", "b", "b", "c"], normalise=True)

    half = 0.5 / (0.5**0.5 + 1e-6)
    assert found.tolist() == pytest.approx([half, -half, -half, half, 0.0])


def test_a_trajectory_whose_group_failed_has_zero_advantage():
    found = advantages(["uid0_3_0"], {"uid0_3_0": 1.0})

    assert found == {"uid0_3_0": 0.0}


def test_a_trajectory_of_several_rows_counts_once():
    keys = ["uid0_0_0", "uid0_0_1", "uid0_1_0", "uid0_2_0"]
    rewards = {"uid0_0_0": 1.0, "uid0_0_1": 1.0, "uid0_1_0": 0.0, "uid0_2_0": 0.0}

    found = advantages(keys, rewards)

    assert found["uid0_0_0"] == found["uid0_0_1"] > 0
    assert sum((2 * found["uid0_0_0"], found["uid0_1_0"] * 2, found["uid0_2_0"] * 2)) == pytest.approx(0, abs=1e-5)


@pytest.mark.feature("verl's multi-turn", "several outputs of a trajectory")
def test_the_last_row_represents_its_trajectory():
    assert last_rows(["a_0_1", "b_0_0", "a_0_0", "a_0_2"]) == [3, 1]


def test_failures_are_counted_by_their_cause():
    keys = step(tasks=2, samples=2)
    parts = split(batch(keys, {keys[0]: "tool_timeout", keys[3]: "tool_timeout"}))

    assert parts.causes == {"tool_timeout": 2}
    assert (parts.num_trajectories, parts.failed_ratio) == (4, 0.5)


def test_a_step_with_too_many_failures_ends_the_run_with_the_reason():
    keys = step(tasks=2, samples=2)
    parts = split(batch(keys, dict.fromkeys(keys[:3], "tool_connection")))

    parts.require_few_failures(0.75, "Step 3")
    with pytest.raises(RunFailedError, match=r"Step 3: 3 of 4 trajectories failed \(tool_connection: 3\)") as caught:
        parts.require_few_failures(0.5, "Step 3")
    assert caught.value.cause == "outage"


@pytest.mark.parametrize(
    ("causes", "cause"),
    [
        (["tool_raised", "tool_raised", "tool_connection", None], "outage"),
        (["tool_raised", "tool_raised", "tool_raised", None], "failed_ratio"),
        (["reward", "reward", "reward", "tool_timeout"], "failed_ratio"),
        (["inference", "store_unavailable", "tool_server", "tool_timeout"], "outage"),
        (["tool_lost_write"] * 4, "outage"),
    ],
)
def test_too_many_failures_end_the_run_for_good_unless_enough_of_them_pass_by_themselves(causes, cause):
    keys = step(tasks=2, samples=2)
    failed = {key: found for key, found in zip(keys, causes, strict=True) if found is not None}

    with pytest.raises(RunFailedError) as caught:
        split(batch(keys, failed)).require_few_failures(0.5, "Step 3")

    assert (caught.value.cause, caught.value.is_final) == (cause, cause == "failed_ratio")


def test_a_step_with_only_failures_ends_the_run_at_any_limit():
    keys = step(tasks=1, samples=2)

    with pytest.raises(RunFailedError, match="2 of 2"):
        split(batch(keys, dict.fromkeys(keys, "tool_timeout"))).require_few_failures(1.0, "Step 1")


@pytest.mark.parametrize("others", [(), ({"num_turns": 1.0},), ({"late": 0.1, "num_turns": 0.7},)], ids=str)
def test_agent_metrics_are_sums_of_floats_one_after_another(others: tuple[dict[str, float], ...]):
    generator = np.random.default_rng(0)
    found = [{"num_turns": float(one), "cost": float(other)} for one, other in generator.normal(size=(999, 2))]
    summaries = [summary(1.0, metrics=metrics) for metrics in (*found, *others)]

    metrics = agent_metrics(summaries)

    for name in ("num_turns", "cost"):
        values = [each.metrics[name] for each in summaries if name in each.metrics]
        assert metrics[f"turnmill/tool/{name}/mean"] == sum(values) / len(values)
        assert metrics[f"turnmill/tool/{name}/max"] == max(values)
        assert metrics[f"turnmill/tool/{name}/min"] == min(values)


def test_no_metrics_of_agents_are_none():
    assert agent_metrics([]) == agent_metrics([summary(1.0, metrics={})]) == {}


@pytest.mark.feature("verl-tool", "metrics of the agent")
def test_agent_metrics_are_logged_as_mean_maximum_and_minimum():
    found = agent_metrics(
        [summary(metrics={"num_turns": 1.0}), summary(metrics={"num_turns": 3.0, "valid_action": 1.0})]
    )

    assert found == {
        "turnmill/tool/num_turns/mean": 2.0,
        "turnmill/tool/num_turns/max": 3.0,
        "turnmill/tool/num_turns/min": 1.0,
        "turnmill/tool/valid_action/mean": 1.0,
        "turnmill/tool/valid_action/max": 1.0,
        "turnmill/tool/valid_action/min": 1.0,
    }


def test_the_ratio_of_valid_actions_is_a_share_for_every_kind_of_agent():
    with_tools = {"num_tool_calls": 4.0, "valid_action": 3.0, "valid_action_ratio": 0.75}
    without_call = {"num_tool_calls": 0.0, "valid_action": 0.0}

    found = validation_metrics(
        [summary(metrics=metrics) for metrics in (with_tools, without_call, {"valid_action": 0.25})]
    )

    assert found["validation/valid_action_ratio"] == 0.5


def test_row_values_are_returned_by_episode_id():
    keys = ["uid0_0_0", "uid0_1_0", "uid0_0_1"]
    rows = rows_of(keys, [summary(episode_id="t1-0-0"), summary(episode_id="t1-0-1")])

    assert rows.by_trajectory(torch.tensor([1.0, -1.0, 1.0])) == {"t1-0-0": 1.0, "t1-0-1": -1.0}


def test_turn_rows_have_the_states_and_numbers_of_their_turns():
    keys = ["uid0_0_1", "uid0_1_0", "uid0_0_0"]
    turns = summary(episode_id="t1-0-0", row_states=("first", "second"))
    rows = rows_of(keys, [turns, summary(episode_id="t1-0-1")])

    assert rows.states_R == ("second", "", "first")
    of_turns = rows.by_turn(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    assert [(episode, turn, values.tolist()) for episode, turn, values in of_turns] == [
        ("t1-0-0", 1, [1.0, 2.0]),
        ("t1-0-0", 0, [5.0, 6.0]),
    ]


def test_summaries_are_read_from_the_last_row_of_each_trajectory():
    whole, other = summary(episode_id="t1-0-0"), summary(episode_id="t1-0-1", reward=1.0)

    rows = batch(["a_0_0", "a_1_0", "a_0_1"], {})
    rows.tags[1][EPISODE], rows.tags[2][EPISODE] = encode(other), encode(whole)

    assert read_summaries(rows, EpisodeSummary) == (whole, other)


def summary(
    reward: float = 0.0,
    *,
    generation: float = 1.0,
    num_turns: int = 1,
    metrics: dict[str, float] | None = None,
    episode_id: str = "t",
    row_states: tuple[str, ...] = (),
) -> EpisodeSummary:
    return EpisodeSummary(
        episode_id=episode_id,
        reward=reward,
        stop_reason="completed",
        success=reward > 0,
        num_turns=num_turns,
        seconds={"generation": generation, "tools": 2.0, "loop": 0.5},
        metrics={"num_turns": float(num_turns)} if metrics is None else metrics,
        row_states=row_states,
    )


def rows_of(keys: list[str], summaries: list[EpisodeSummary]) -> TrajectoryBatch:
    ones_RG, lengths_R = torch.ones(len(keys), 2), torch.full((len(keys),), 2)
    return TrajectoryBatch(
        batch(keys, {}),
        ones_RG,
        ones_RG,
        lengths_R,
        lengths_R,
        lengths_R,
        tuple(summaries),
        num_unsampled_tokens=3,
    )


def metrics_of(keys: list[str], summaries: list[EpisodeSummary]) -> dict[str, float]:
    return trajectory_metrics(rows_of(keys, summaries), split(batch(keys, {})), at_once=len(keys))


def test_reward_quantiles_are_logged():
    keys = step(tasks=1, samples=11)

    metrics = metrics_of(keys, [summary(reward / 10) for reward in range(11)])

    quantiles = [metrics[f"turnmill/reward_quantile/{q}"] for q in ("0.1", "0.5", "0.9")]
    assert quantiles == pytest.approx([0.1, 0.5, 0.9])


def test_groups_with_uniform_rewards_are_counted():
    keys = step(tasks=3, samples=2)
    rewards = [0.0, 0.0, 1.0, 0.0, 1.0, 1.0]

    metrics = metrics_of(keys, [summary(reward) for reward in rewards])

    assert metrics["turnmill/uniform_groups_ratio"] == pytest.approx(2 / 3)


def test_rollout_seconds_include_failed_trajectories():
    keys = step(tasks=1, samples=3)
    parts = split(batch(keys, {keys[2]: "tool_timeout"}))
    failure = EpisodeFailure("t", "tool_timeout", "broke", 1, {"generation": 1.0, "tools": 60.0, "loop": 0.0})
    parts.failed.tags[0][FAILURE] = encode(failure)

    metrics = trajectory_metrics(rows_of(keys[:2], [summary(), summary(generation=4.0)]), parts, at_once=2)

    assert metrics["turnmill/rollout_seconds/generation"] == 6.0
    assert metrics["turnmill/rollout_seconds/tools"] == 64.0
    assert metrics["turnmill/rollout_seconds/loop"] == 1.0
    assert metrics["turnmill/rollout_slots"] == 2.0


def test_rollout_metrics_include_dropped_trajectories():
    keys = step(tasks=1, samples=2)
    solved = summary(1.0, generation=3.0, num_turns=5)
    kept = batch(keys, {})
    kept.extra_info[DROPPED] = Dropped(num_tasks=3, summaries=(solved,) * 6)

    metrics = trajectory_metrics(rows_of(keys, [summary(1.0), summary(0.0)]), split(kept), at_once=2)

    assert metrics["turnmill/trajectories"] == 8
    assert metrics["turnmill/success"] == metrics["turnmill/reward_mean"] == 7 / 8
    assert metrics["turnmill/episode_length"] == 4
    assert metrics["turnmill/episodes/completed"] == 8
    assert metrics["turnmill/uniform_groups_ratio"] == 3 / 4
    assert metrics["turnmill/tool/num_turns/max"] == 5
    assert metrics["turnmill/rollout_seconds/generation"] == 20
    assert metrics["turnmill/rollout_slots"] == 2
    # Counted over the rows that are learned from.
    assert metrics["turnmill/turns"] == 2
    assert metrics["turnmill/response_tokens"] == 4


def test_lengths_are_divided_by_outcome_over_all_rows_of_a_trajectory():
    keys = ["uid0_0_0", "uid0_0_1", "uid0_1_0", "uid0_2_0"]
    cut = replace(summary(0.0, num_turns=2), stop_reason="max_tokens")

    metrics = metrics_of(keys, [summary(1.0, num_turns=4), summary(0.0, num_turns=1), cut])

    # Every row has two tokens, and the first trajectory two rows.
    assert metrics["turnmill/response_length_solved"] == 4 / 4
    assert metrics["turnmill/response_length_unsolved"] == pytest.approx(4 / 3)
    assert (metrics["turnmill/episode_length_solved"], metrics["turnmill/episode_length_unsolved"]) == (4, 1.5)
    assert metrics["turnmill/truncated_ratio"] == pytest.approx(1 / 3)


def test_unsampled_tokens_are_logged():
    keys = step(tasks=1, samples=2)

    metrics = metrics_of(keys, [summary(), summary()])

    assert metrics["turnmill/token_mismatches"] == 3.0
