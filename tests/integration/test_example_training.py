"""Every kind of example for a CPU, made small, up to its first update."""

from pathlib import Path

import pytest

from support.training_runs import TrainingRun

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(900)]

EXAMPLES = Path(__file__).parents[2] / "manifests" / "examples"

SMALL = (
    # A warm start of a few seconds: enough for a run, not for solving the tasks.
    "model.warmStart={turns: 400, gradientSteps: 30, maxLoss: 10}",
    *("training.steps=1", "training.validation.episodes=2", "environment.count=4"),
)
TURNS = ("training.turnsPerStep=16", "algorithm.minibatchTurns=8", "algorithm.criticWarmup={batches: 1, steps: 1}")
TASKS = ("training.tasksPerStep=4", "algorithm.minibatchTasks=2", "agent.groupSize=4")


# The other examples are trained by other tests, or differ from these only in their resources.
@pytest.mark.parametrize(
    ("name", "size"),
    [
        *(("babaisai-cpu", TURNS), ("blocksworld-cpu", TURNS), ("sokoban-cpu", TURNS), ("tetris-cpu", TURNS)),
        *(("babyai-goto-gigpo-cpu", TASKS), ("tool-arithmetic-dapo-cpu", TASKS)),
    ],
)
def test_an_example_trains_until_its_first_update(name, size, tmp_path):
    overrides = [word for override in (*SMALL, *size) for word in ("--set", override)]

    with TrainingRun(EXAMPLES / f"{name}.yaml", tmp_path / "run") as run:
        run.train(*overrides)

    before, after = run.metrics
    assert (before["step"], after["step"]) == (0, 1)
    assert after["actor/grad_norm"] >= 0
    assert after["turnmill/token_mismatches"] == 0
    assert after["training/rollout_probs_diff_mean"] < 1e-4
    assert run.checkpoints() == [1]
