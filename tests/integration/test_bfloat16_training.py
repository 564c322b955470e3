"""Whole steps as a GPU computes them, on the CPU: models in bfloat16, packed rows, checkpointed activations."""

import math
from pathlib import Path

import pytest

from support.training_runs import TOOL_JOB, TrainingRun

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EXAMPLES = Path(__file__).parents[2] / "manifests" / "examples"
WARM_START = "model.warmStart={turns: 600, gradientSteps: 60, maxLoss: 10}"
FSDP = ("actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.ref.fsdp_config", "critic.fsdp")
AS_ON_GPUS = (
    *(f"verl.{fsdp}.mixed_precision.param_dtype=bf16" for fsdp in FSDP),
    *(f"verl.{model}.model.use_remove_padding=true" for model in ("actor_rollout_ref", "critic")),
    *(f"verl.{model}.model.enable_gradient_checkpointing=true" for model in ("actor_rollout_ref", "critic")),
)
TURNS = ("training.turnsPerStep=32", "algorithm.minibatchTurns=16", "environment.count=4")
WARM_UP = "algorithm.criticWarmup={batches: 1, steps: 1, turnsPerStep: 32}"
TASKS = ("training.tasksPerStep=4", "algorithm.minibatchTasks=2", "agent.groupSize=4")


def settings(*overrides: str) -> list[str]:
    return [word for override in (*AS_ON_GPUS, *overrides) for word in ("--set", override)]


def require_step(run: TrainingRun) -> None:
    """Assert that a step with a critic has been computed, from the probabilities of the engine."""
    step = run.metrics[-1]
    assert step["step"] == 1
    # Of float32, 1e-7; of bfloat16, rounding to 8 bits.
    assert 1e-6 < step["training/rollout_probs_diff_mean"] < 3e-2
    for name in ("actor/grad_norm", "critic/grad_norm", "critic/vf_loss", "critic/advantages/std"):
        assert math.isfinite(step[name]), name
        assert step[name] > 0, name


def test_turns_with_a_critic(tmp_path):
    with TrainingRun(EXAMPLES / "babyai-goto-cpu.yaml", tmp_path / "run") as run:
        run.train(*settings(WARM_START, WARM_UP, *TURNS, "training.steps=1", "training.validation.episodes=0"))

    require_step(run)


@pytest.mark.nightly
def test_tool_calls_with_a_critic(tmp_path):
    (tmp_path / "job.yaml").write_text(TOOL_JOB)
    with TrainingRun(tmp_path / "job.yaml", tmp_path / "run") as run:
        run.train(*settings("algorithm.type=ppo", "algorithm.criticLearningRate=1e-3", "training.steps=1"))

    require_step(run)


@pytest.mark.nightly
def test_verls_multi_turn_rollout_with_a_critic(tmp_path):
    with TrainingRun(EXAMPLES / "calculator-multi-turn-cpu.yaml", tmp_path / "run") as run:
        run.train(*settings(WARM_START, *TASKS, "algorithm.type=ppo", "training.steps=1"))

    require_step(run)
