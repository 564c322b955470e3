"""Rules over the metrics of a run; the values of broken runs are those that real ones have written."""

from typing import Any

import pytest

from turnmill.observability.suspects import find_suspects

HEALTHY: dict[str, Any] = {
    "actor/entropy": 0.59,
    "actor/grad_norm": 0.71,
    "actor/lr": 1.25e-4,
    "actor/pg_clipfrac": 0.0015,
    "actor/ppo_kl": 0.0013,
    "critic/advantages/std": 1.0,
    "critic/vf_explained_var": 0.2,
    "rollout_corr/k3_kl": 1e-14,
    "turnmill/episodes/completed": 40.0,
    "turnmill/kl_reference": 0.05,
    "turnmill/success": 0.24,
    "turnmill/truncated_ratio": 0.0,
    "turnmill/uniform_groups_ratio": 0.125,
    "turnmill/valid_action_ratio": 0.98,
}


def history(steps: int = 6, **changed: float | None) -> list[dict[str, Any]]:
    """Return the rows of a run of which some metrics, named without their prefix, are changed."""
    names = {name.rpartition("/")[2]: name for name in HEALTHY} | {"spread": "critic/advantages/std"}
    row = HEALTHY | {names[name]: value for name, value in changed.items()}
    return [{"step": 0, "validation/success": 0.0}, *({"step": step, **row} for step in range(1, steps + 1))]


def names(rows: list[dict[str, Any]]) -> list[str]:
    return [suspect.name for suspect in find_suspects(rows)]


def test_a_run_that_learns_has_no_suspects():
    assert names(history()) == []


def test_a_run_without_steps_has_no_suspects():
    assert names([]) == names(history(steps=0)) == []


def test_a_run_of_another_version_without_these_metrics_has_no_suspects():
    assert names([{"step": 1, "turnmill/turns": 128.0}]) == []


@pytest.mark.parametrize(
    ("suspect", "just_beyond", "just_within"),
    [
        ("engine and trainer disagree", {"k3_kl": 0.011}, {"k3_kl": 0.009}),
        ("responses cut off", {"truncated_ratio": 0.1}, {"truncated_ratio": 0.09}),
        ("invalid actions", {"valid_action_ratio": 0.49}, {"valid_action_ratio": 0.5}),
        ("no episode solved", {"success": 0.0}, {"success": 0.001}),
        ("no signal", {"spread": 1e-7}, {"spread": 1e-5}),
        ("no signal in groups", {"uniform_groups_ratio": 0.8}, {"uniform_groups_ratio": 0.79}),
        ("gradient not finite", {"grad_norm": None}, {"grad_norm": 1e3}),
        ("gradient zero", {"grad_norm": 0.0}, {"grad_norm": 1e-7}),
        ("learning rate zero", {"lr": 1e-10}, {"lr": 1e-8}),
        ("steps too large", {"ppo_kl": -0.11}, {"ppo_kl": -0.09}),
        ("steps too large", {"pg_clipfrac": 0.31}, {"pg_clipfrac": 0.29}),
        ("KL exploded", {"kl_reference": 1.1}, {"kl_reference": 0.9}),
        ("entropy collapsed", {"entropy": 0.049}, {"entropy": 0.051}),
        ("critic explains nothing", {"vf_explained_var": 0.0}, {"vf_explained_var": 0.01}),
    ],
)
def test_each_rule_speaks_beyond_its_threshold_and_not_within(
    suspect: str, just_beyond: dict[str, float | None], just_within: dict[str, float | None]
):
    assert names(history(**just_beyond)) == [suspect]
    assert names(history(**just_within)) == []


@pytest.mark.parametrize(
    "changed",
    [{"uniform_groups_ratio": 1.0}, {"entropy": 0.01}, {"kl_reference": 3.0}, {"vf_explained_var": -0.1}],
    ids=lambda changed: next(iter(changed)),
)
def test_what_comes_with_a_policy_that_solves_its_tasks_is_no_suspect(changed: dict[str, float]):
    assert names(history(success=0.95, **changed)) == []


def test_most_rules_read_the_last_third_of_the_steps():
    cut, fine = history(steps=2, truncated_ratio=0.5)[1:], history(steps=4)[1:]

    assert names([*cut, *fine]) == []
    assert names([*fine, *cut]) == ["responses cut off"]


def test_the_end_of_a_schedule_is_no_learning_rate_of_zero():
    assert names([*history(), {"step": 7, **HEALTHY, "actor/lr": 0.0}]) == []


def test_no_success_in_few_episodes_is_no_suspect():
    assert names(history(success=0.0, completed=3.0)) == []


def test_a_critic_may_begin_below_zero():
    assert names(history(steps=4, vf_explained_var=-0.2)) == []


def test_a_suspect_says_the_value_and_what_to_try():
    (suspect,) = find_suspects(history(truncated_ratio=0.977))

    assert suspect.finding.startswith("98% of the responses reach the token limit")
    assert "maxResponseTokens" in suspect.advice


LEARNING_RATE_TOO_LARGE: list[dict[str, Any]] = [
    {"actor/ppo_kl": 4.81, "actor/pg_clipfrac": 0.153, "turnmill/kl_reference": 0.0, "turnmill/success": 0.109,
     "actor/entropy": 0.936, "turnmill/uniform_groups_ratio": 0.5, "turnmill/truncated_ratio": 0.0},
    {"actor/ppo_kl": 0.178, "actor/pg_clipfrac": 0.006, "turnmill/kl_reference": 7.97, "turnmill/success": 0.0,
     "actor/entropy": 0.031, "turnmill/uniform_groups_ratio": 1.0, "turnmill/truncated_ratio": 0.992},
    {"actor/ppo_kl": 0.0, "actor/pg_clipfrac": 0.0, "turnmill/kl_reference": 7.98, "turnmill/success": 0.0,
     "actor/entropy": 0.0, "turnmill/uniform_groups_ratio": 1.0, "turnmill/truncated_ratio": 1.0},
]  # fmt: skip
"""What `tool-arithmetic-cpu` wrote with `algorithm.actorLearningRate=0.1`, in three steps."""

RESPONSES_TOO_SHORT: dict[str, Any] = {
    "actor/ppo_kl": 0.0, "actor/grad_norm": 0.0, "actor/lr": 2.5e-4, "critic/advantages/std": 0.0,
    "turnmill/success": 0.0, "actor/entropy": 1.57, "turnmill/uniform_groups_ratio": 1.0,
    "turnmill/truncated_ratio": 0.969, "turnmill/episodes/max_tokens": 124.0, "turnmill/episodes/completed": 4.0,
}  # fmt: skip
"""What it wrote with `agent.maxActionLength=4`."""

LEARNING_RATE_ZERO: dict[str, Any] = {
    "actor/ppo_kl": 0.0, "actor/grad_norm": 0.365, "actor/lr": 5e-13, "critic/advantages/std": 0.8,
    "turnmill/success": 0.109, "actor/entropy": 0.936, "turnmill/uniform_groups_ratio": 0.5,
}  # fmt: skip
"""What it wrote with `algorithm.actorLearningRate=1e-12`."""


@pytest.mark.parametrize(
    ("steps", "suspects"),
    [
        (
            LEARNING_RATE_TOO_LARGE,
            ["steps too large", "KL exploded", "responses cut off", "no signal in groups", "entropy collapsed"],
        ),
        ([RESPONSES_TOO_SHORT] * 2, ["responses cut off", "no episode solved", "no signal", "gradient zero"]),
        ([LEARNING_RATE_ZERO] * 2, ["learning rate zero"]),
    ],
    ids=["learning rate too large", "responses too short", "learning rate zero"],
)
def test_runs_that_were_broken_on_purpose_have_their_cause_first(steps: list[dict[str, Any]], suspects: list[str]):
    assert names([{"step": number, **row} for number, row in enumerate(steps, 1)]) == suspects
