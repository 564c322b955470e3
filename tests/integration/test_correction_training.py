"""Whole runs whose losses have terms or weights beside the clipped advantage."""

from pathlib import Path

import pytest

from support.training_runs import TOOL_JOB, TrainingRun

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(1200)]

TURN_JOB = """
apiVersion: turnmill.dev/v1alpha1
kind: AgentTrainingJob
metadata: {name: turns}
spec:
  model: {warmStart: {turns: 600, gradientSteps: 40, maxLoss: 10}}
  agent: {maxTurns: 6, prompt: compact, maxPromptTokens: 160, maxResponseTokens: 20}
  environment: {name: babyai, task: GoToObj, count: 4}
  algorithm: {minibatchTurns: 8, entropyCoefficient: 0, criticWarmup: {batches: 1, steps: 1}}
  training: {steps: 2, turnsPerStep: 16, validation: {episodes: 0}}
  resources: {device: cpu}
"""


@pytest.mark.parametrize("job", [TURN_JOB, TOOL_JOB], ids=["turns", "trajectories"])
def test_the_weights_reach_the_update_of_the_policy(job, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(job)
    mode = ("--set", "training.mode=colocate_async", "--set", "training.validation.episodes=0")
    with TrainingRun(file, tmp_path / "run", {"PYTHONPATH": str(Path(__file__).parents[1])}) as run:
        # All weights are truncated to a millionth.
        run.train(*mode, "--set", "training.steps=2", "--set", "algorithm.rolloutCorrection.threshold=1e-6")

    rows = run.metrics
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert row["rollout_corr/rollout_is_ratio_fraction_high"] == 1
        assert row["rollout_corr/rollout_is_mean"] == pytest.approx(1e-6, rel=1e-3)
        assert 0 < row["actor/grad_norm"] < 1e-4


@pytest.mark.feature("verl's multi-turn", "the KL penalty in the loss")
@pytest.mark.parametrize(
    ("job", "whole_step"),
    [(TURN_JOB, "minibatchTurns=16"), (TOOL_JOB, "minibatchTasks=4")],
    ids=["turns", "trajectories"],
)
def test_a_kl_penalty_in_the_loss_is_computed_against_the_initial_policy(job, whole_step, tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(job)
    settings = (
        "algorithm.kl={coefficient: 0.5, in: loss}",
        "algorithm.actorLearningRate=1e-3",
        f"algorithm.{whole_step}",
        "algorithm.epochs=1",
        "training.steps=2",
    )
    with TrainingRun(file, tmp_path / "run", {"PYTHONPATH": str(Path(__file__).parents[1])}) as run:
        run.train("--set", "training.validation.episodes=0", *(part for name in settings for part in ("--set", name)))

    first, second = run.metrics
    assert first["actor/kl_coef"] == second["actor/kl_coef"] == 0.5
    # One update a step: the first begins at the initial policy and moves away from it.
    assert first["actor/kl_loss"] == pytest.approx(0, abs=1e-5)
    assert second["actor/kl_loss"] > 1e-3
    assert "turnmill/kl_reference" not in second


@pytest.mark.feature("Verlog", "critic warm-up")
def test_the_policy_stays_the_initial_one_while_the_critic_warms_up(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(TURN_JOB.replace("{batches: 1, steps: 1}", "{batches: 2, steps: 3}"))
    settings = ("algorithm.kl.coefficient=0.01", "algorithm.actorLearningRate=1e-3", "training.steps=2")
    with TrainingRun(file, tmp_path / "run") as run:
        run.train(*(part for name in settings for part in ("--set", name)))

    first, second = run.metrics
    # Policies of the same weights give every token the same probability.
    assert first["turnmill/kl_reference"] == pytest.approx(0, abs=1e-6)
    assert abs(second["turnmill/kl_reference"]) > 1e-5
